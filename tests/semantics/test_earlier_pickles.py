"""Pickles that were made before the package's rooms were arranged anew load as they did."""

from __future__ import annotations

import base64
import pickle
import zlib

import mpgrad as mg

#: ``pickle.dumps``, protocol 4, of the objects that the test looks at.
PICKLED = (
    r"c-"
    r"oCsOK%)S5T1S8>y2VS1P+$)0fH^iDu)O~A@&+<w1{ym6k9^E1VhhE?{?#Pxu@HSBSj=aYww~K2)RK5iT?n;6X)Oq2ghe}L%D"
    r"EB5F9{Ukf3^IyfJ>@j5MQuR8`m4Ro^$aieI)WM)KTLW3tR~5Qj|35kG1(<kr)<<zr4lH?BKjL~*R-"
    r"fW@#asOPE;?UfoUSzbupH<UaR2tQh_TTaMu-4`CGh%vOPWDQ)MFo-!54%e2Y#8Syh;HD-"
    r"U$}~D^I%lhObw!PtIWyl;WJs1=z8Ycel5d??y>7Z&khx20Zf@?Kf8a?zroolnn;tNXTMfW9rC{2X1t$_Px&pRq%9dr11{eX-"
    r";S6aI)IGF{8K5iArh6M|{I=59GQb(40S(%!D~GHIF$5Q)O_MvjhH0B{MT%qcna9EUR!R=O+aGTzQYEJ}K5}{w9pGD2<T=PVX"
    r"Bd$2-A0lz8F`#-(WWTYCy-"
    r"Z<@b4tvMZ*}KI_N2&RJLff(qv)chpzB&GC6GpVPHkDMPsNlSD!06L<6gZ5f=<>%)G3Hg6~_%30sz8jyTrP$=mQTlg24Rgb4O"
    r"!1z(RWw9-zJt^6O@dpkQ5`qe4-_JgfvA*^`$<S60OpIp@M!6?Ga=?rJh9Jzd4knG-"
    r"$N`kz1g42;_3Rz3aZnaq`qFBA3G)UfKs@eECWtlA5m_sd_jYm8Bxz}v`_Sf$HGwZLcDOtea)SP^4^|J@(<V9IaJIivh1GH!w"
    r"*&{2+j}yZ6<baQ^Q=i_zFfJ!&>r<g9W)2G^_BbP-"
    r"${N!~F|KE8rJ03{PlZdZ3#tP!ppH5gDaqoz9sm{dW?>EXZUZe`yh5F1w>*;$p`AwnIcyHLaex`(T0EZ34hy5W-"
    r"d_e@4L18W3AN11^h*~;$Cno0c<{{^-"
    r"S2<depLPT>iy{M;>X?A*6ydfUp+6j6T~WEY!EUZc}l*Jg?FKC8MOtcASWPA0jGfog(mP^YT74o!3&*ZdTBi44xDnZ5lgXyJb"
    r"aSh)FHo`Wh3qoD<%l;m-NPy>#JFK1z7gqRp3+6i@C4%O9u#~U`#Vo7H8)dF86Vevt9DC#<SNMlvv)m<8+~D=2DUj*M4|-"
    r"=ffYj@2r)UwnlGU-8!T%d-"
    r"2GV#oO#%+xlSo?A9OdXd^Pdo;(z<s`cuG>^fPjh53fD`RnUHIg69$OUsR8Vv#3_^<wVf<loEdlf&O_PW-"
    r";~=foj3BvUsPc@y3l(7GxOB2c%a<3YKG2z6Z?^ygLhFIm|y0aWBQkp8r+Ey`jJe5<%Dj6fgvG4qs7T?*yXEeZYClY<cpKgvQ"
    r"H!WQ*^0pfzyPy"
)  # fmt: skip


def test_pickles_of_earlier_versions_load() -> None:
    found = pickle.loads(zlib.decompress(base64.b85decode(PICKLED)))
    assert found["tensor"].tolist() == [1.0, 2.0]
    assert found["tensor"].requires_grad
    assert found["linear"](mg.ones(1, 2)).item() == 6.0 - 3 * 0.5
    assert found["state"]["param_groups"][0]["lr"] == 0.5
    assert found["dtype"] is mg.float64
    assert found["size"] == mg.Size([2, 3])
    assert found["device"] == mg.device("cpu")
    assert found["generator"].initial_seed() == 7
    assert found["normal"].scale.item() == 2.0
    assert found["lstm"](mg.ones(1, 1, 1))[0].shape == (1, 1, 1)
