"""mpgrad.autograd.anomaly_mode: which forward led to a failing backward, under PyTorch's names."""

from mpgrad.recording.graph.anomaly import detect_anomaly as detect_anomaly
from mpgrad.recording.graph.anomaly import set_detect_anomaly as set_detect_anomaly
