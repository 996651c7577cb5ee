"""Public scripts: where they are, a small configuration, and the documented lines for gossip."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class PublicScript:
    """A public script, and its conversion to gossip.

    Attributes:
        file: Script, in the folder of checkouts.
        words: Arguments. ``BATCH`` is replaced by the batch size of a peer, or by four times that
            for a single process.
        loss: Regular expression of the loss that the script prints.
        last: Number of losses of a process, from the end, that are averaged.
        batch: Batch size of a peer.
        steps: Planned steps.
        edits: Documented changes. For each file, a mapping from a text to its replacement.
        small: Changes of constants that no argument sets. They apply to every run.
        beside: Modules of the checkout that the script imports from its own folder.
    """

    file: str
    words: str
    loss: str
    last: int
    batch: int
    steps: int
    edits: dict[str, dict[str, str]]
    small: dict[str, str] = field(default_factory=dict)
    beside: tuple[str, ...] = ()


ZOO = "PyTorch-GAN/implementations/wgan/wgan.py"
GPT = (
    "--device=cpu --compile=False --eval_iters=20 --dropout=0.0 --warmup_iters=10"
    " --batch_size=BATCH --learning_rate=3e-3 --eval_interval=50 --log_interval=20 --max_iters=300"
)
SHAKESPEARE = (
    f"config/train_shakespeare_char.py {GPT} --block_size=32 --n_layer=2 --n_head=2 --n_embd=32"
    " --lr_decay_iters=300"
)
STORIES = (
    f"{GPT} --dtype=float32 --max_seq_len=32 --vocab_source=custom --vocab_size=64 --dim=32"
    " --n_layers=2 --n_heads=2 --n_kv_heads=2 --gradient_accumulation_steps=1"
)
ADDER = (
    "--model.model_type=None --model.n_layer=2 --model.n_head=2 --model.n_embd=32"
    " --trainer.batch_size=BATCH --trainer.max_iters=400 --trainer.num_workers=0"
    " --trainer.learning_rate=3e-3"
)
LORA = (
    "--base_model tiny-llama --data_path guanaco --output_dir out --batch_size BATCH --num_epochs 2"
    " --learning_rate 1e-2 --cutoff_len 16 --device cpu --eval_step 5"
)
GLUE = {
    "num_warmup_steps=100": "num_warmup_steps=4",
    '"lr": 2e-5': '"lr": 1e-3',
    '"batch_size": 16': '"batch_size": BATCH',
    "_SIZE = 16": "_SIZE = BATCH",
    "backward(loss)\n": "backward(loss)\n            print(f'loss {loss:f}')\n",
}
LIGHTNING = {
    "MNISTDataModule()": "MNISTDataModule(batch_size=BATCH, val_split=48, num_workers=0)",
    'accelerator="gpu", devices=1': 'accelerator="cpu", devices=1, max_epochs=4',
    "        self.log_dict(": '        print(f"[D loss: {d_loss:f}]")\n        self.log_dict(',
}
INIT = "import gossip\npeer = gossip.init()\n"
LOOP = (
    "        with ctx:\n            logits = model(X, Y)\n            loss = raw_model.last_loss\n"
)
FETCH = "        X, Y = next(train_batch_iter)\n"
EPOCHS = "    for epoch in range(1, args.epochs + 1):\n"
MNIST = {
    "import argparse\n": "import argparse\nimport gossip\n",
    EPOCHS: (
        "    peer = gossip.init()\n    model, optimizer = peer.prepare(model, optimizer)\n"
        "    train_loader = peer.shard(train_loader)\n    for epoch in peer.epochs(args.epochs):\n"
    ),
}
KEEP = "    peer.keep(scheduler=scheduler)\n"
NANOGPT = {
    "tokens_per_iter = grad": f"{INIT}tokens_per_iter = grad",
    "checkpoint = None #": "model, optimizer = peer.prepare(model, optimizer)\ncheckpoint = None #",
    "while True:\n": "for iter_num in peer.steps(max_iters + 1):\n",
}
CLAMP = (
    "        for p in discriminator.parameters():\n"
    "            p.data.clamp_(-opt.clip_value, opt.clip_value)\n"
)
WGAN = {
    "Tensor = torch.cuda": (
        f"{INIT}peer.prepare("
        "nn.ModuleList([generator, discriminator]), [optimizer_G, optimizer_D])\n"
        "dataloader = peer.shard(dataloader)\nTensor = torch.cuda"
    ),
    CLAMP: "",
    "for epoch in range(opt.n_epochs):\n": (
        f"@peer.each_step\ndef clip():\n{CLAMP}for epoch in peer.epochs(opt.n_epochs):\n"
    ),
    "        # Configure input\n": (
        "        batches_done = peer.step\n        i = batches_done % len(dataloader)\n"
    ),
}
DCGAN = {
    "if opt.dry_run:\n    opt": (
        f"{INIT}peer.prepare(nn.ModuleList([netD, netG]), [optimizerD, optimizerG])\n"
        "dataloader = peer.shard(dataloader)\nif opt.dry_run:\n    opt"
    ),
    "for epoch in range(opt.niter):": "for epoch in peer.epochs(opt.niter):",
}
MINGPT = {
    "import time\n": "import time\nimport gossip\n",
    "        # setup the dataloader\n": (
        "        peer = gossip.init()\n        peer.prepare(model, self.optimizer)\n"
    ),
    "            sampler=torch.utils.data.RandomSampler(self.train_dataset, replacement=True,"
    " num_samples=int(1e10)),\n": "",
    "        model.train()\n": (
        "        train_loader = peer.shard(train_loader)\n        model.train()\n"
    ),
    "        while True:\n": "        for self.iter_num in peer.steps(config.max_iters):\n",
}
LLAMA2C = {
    "tokens_per_iter = grad": f"{INIT}tokens_per_iter = grad",
    "checkpoint = None  #": (
        "model, optimizer = peer.prepare(model, optimizer)\ncheckpoint = None  #"
    ),
    "while True:\n": "for iter_num in peer.steps(max_iters + 1):\n",
    "X, Y = next(train_batch_iter)  # fetch the very first batch\n": "",
    FETCH: "",
    LOOP: FETCH + LOOP,
    'iter_batches(split="train")': 'iter_batches(split="train", shard=peer.shard)',
}
STREAM = {
    "num_workers=0, **dataset_kwargs": "num_workers=0, shard=iter, **dataset_kwargs",
    "        for x, y in dl:\n": "        for x, y in shard(dl):\n",
}
REINFORCE = {
    "import argparse\n": "import argparse\nimport gossip\n",
    "eps = np.finfo": (
        "peer = gossip.init()\npolicy, optimizer = peer.prepare(policy, optimizer)\neps = np.finfo"
    ),
    "for i_episode in count(1):": "for i_episode in peer.steps(120):",
}
ACCELERATE = {
    "import evaluate\n": (
        "import evaluate\nimport gossip\nfrom gossip.integrations.accelerate import prepare\n"
    ),
    "    # Initialize accelerator\n": "    peer = gossip.init()\n",
    "accelerator.prepare(\n        model,": "prepare(\n        peer, accelerator, model,",
    "for epoch in range(starting_epoch, num_epochs):": "for epoch in peer.epochs(num_epochs):",
}
STRATEGY = {
    "import math\n": "import math\nfrom gossip.integrations.lightning import GossipStrategy\n",
    "devices=1, ": "devices=1, strategy=GossipStrategy(), ",
}
TRAINER = {
    "import os\n": "import os\nfrom gossip.integrations.transformers import GossipTrainer\n",
    "    trainer = Trainer(": "    trainer = GossipTrainer(",
}
ON_CPU = {
    "warmup_steps=100": "warmup_steps=10",
    "fp16=True": "fp16=False",
    '        logging_dir="./logs",\n': "",
}
OF_MUON = {
    "model.configure_optimizers(weight_decay, learning_rate, (beta1, beta2), device_type)": (
        "__import__('muon').SingleDeviceMuonWithAuxAdam([dict(use_muon=at, params=[p for n, p in"
        " model.named_parameters() if (p.ndim == 2 and '.h.' in n) == at])"
        " for at in (True, False)])"
    )
}
D_LOSS, TEST, VAL = r"\[D loss: (\S+)\]", r"Average loss: (\S+),", r"val loss (\S+)"
OWN, SECOND = ("model.py", "configurator.py"), "../Muon/muon.py"
DATA = "--dataset mnist --dataroot ../../data/mnist --ngf 8 --ndf 8 --workers 0"
PL = "pytorch-lightning/examples/pytorch/domain_templates/generative_adversarial_net.py"
MAIN = "main.py"

SCRIPTS: dict[str, PublicScript] = {
    "nanogpt": PublicScript(
        "nanoGPT/train.py", SHAKESPEARE, VAL, 1, 4, 301, {"train.py": NANOGPT}, {}, (*OWN, "config")
    ),
    "muon": PublicScript(
        "nanoGPT/train.py", SHAKESPEARE, VAL, 1, 4, 301, {"train.py": NANOGPT}, OF_MUON,
        (*OWN, "config", SECOND),
    ),
    "llama2c": PublicScript(
        "llama2.c/train.py", STORIES, VAL, 1, 4, 301,
        {"train.py": LLAMA2C, "tinystories.py": STREAM}, {},
        (*OWN, "tinystories.py", "export.py", "tokenizer.py"),
    ),
    "mingpt": PublicScript(
        "minGPT/projects/adder/adder.py", ADDER, r"train loss (\S+)", 3, 16, 400,
        {"mingpt/trainer.py": MINGPT}, {}, ("../../mingpt",),
    ),
    "mnist": PublicScript(
        "examples/mnist/main.py", "--epochs 4 --batch-size BATCH --no-accel", TEST, 1, 16, 128,
        {MAIN: MNIST | {EPOCHS: MNIST[EPOCHS].replace("    for", f"{KEEP}    for")}},
    ),
    "schedule_free": PublicScript(
        "schedule_free/examples/mnist/main.py", "--epochs 4 --batch-size BATCH --no-cuda", TEST, 1,
        16, 128, {MAIN: MNIST},
    ),
    "dcgan": PublicScript(
        "examples/dcgan/main.py", f"{DATA} --batchSize BATCH --niter 4", r"Loss_D: (\S+)", 20, 16,
        128, {MAIN: DCGAN},
    ),
    "wgan": PublicScript(
        ZOO, "--n_epochs 8 --batch_size BATCH", D_LOSS, 8, 16, 256, {"wgan.py": WGAN}
    ),
    "reinforce": PublicScript(
        "examples/reinforcement_learning/reinforce.py", "", r"Average reward: (\S+)", 1, 1, 120,
        {"reinforce.py": REINFORCE}, {},
    ),
    "accelerate": PublicScript(
        "accelerate/examples/complete_nlp_example.py", "--cpu", r"^(?:\d\| )?loss ([0-9.]+)", 10,
        16, 30, {"complete_nlp_example.py": ACCELERATE}, GLUE,
    ),
    "lightning_gan": PublicScript(
        PL, "", D_LOSS, 20, 16, 128, {"generative_adversarial_net.py": STRATEGY}, LIGHTNING
    ),
    "peft": PublicScript(
        "peft/examples/dora_finetuning/dora_finetuning.py", LORA, r"'loss': '?([0-9.]+)", 2, 1, 64,
        {"dora_finetuning.py": TRAINER}, ON_CPU,
    ),
}  # fmt: skip
