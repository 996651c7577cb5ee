"""The script changes its working directory, as hydra does, and saves relative to that."""

import os

import habit

os.makedirs("outputs", exist_ok=True)
os.chdir("outputs")
habit.run()
