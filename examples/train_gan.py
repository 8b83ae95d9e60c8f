"""A generative adversarial network learns points on a circle: two networks, two optimizers.

Its Nodes are tiny, so ``auto``, the default, runs them here: no worker is started.

python examples/train_gan.py [steps]
"""

import math
import sys

import mpgrad as mg
from mpgrad import nn

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
BATCH = 64

mg.manual_seed(0)
generator = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 2))
critic = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
of_generator = mg.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
of_critic = mg.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.999))
judge = nn.BCEWithLogitsLoss()
true, false = mg.ones(BATCH, 1), mg.zeros(BATCH, 1)

for step in range(STEPS):
    angle = mg.rand(BATCH) * 2 * math.pi
    real = mg.stack([angle.cos(), angle.sin()], dim=1)
    fake = generator(mg.randn(BATCH, 2))

    of_critic.zero_grad()
    critic_loss = judge(critic(real), true) + judge(critic(fake.detach()), false)
    critic_loss.backward()
    of_critic.step()

    of_generator.zero_grad()
    generator_loss = judge(critic(fake), true)
    generator_loss.backward()
    of_generator.step()

    if step % max(STEPS // 5, 1) == 0:
        radius = fake.detach().norm(dim=1).mean().item()
        print(f"step {step:>5}  critic {critic_loss.item():.3f}  mean radius {radius:.3f}")

done = mg.current_engine().statistics()
print(f"backward passes here: {done.backwards_local}, in workers: {done.backwards_process}")
