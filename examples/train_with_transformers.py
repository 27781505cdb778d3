"""Train a tiny Temporal SwiLA with transformers' Trainer, on this library's own source code, letter by letter.

python examples/train_with_transformers.py --max_steps 300     # any of Trainer's options; a few minutes on a CPU
"""

import sys
from pathlib import Path

import torch
from transformers import HfArgumentParser, Trainer, TrainingArguments

import swila
from swila import SwiLAConfig, SwiLAForCausalLM

LENGTH = 256


def texts() -> list[dict[str, torch.Tensor]]:
    """The package's source as bytes, cut into pieces; labels are the same bytes, the model shifts them."""
    source = "".join(path.read_text() for path in sorted(Path(swila.__file__).parent.rglob("*.py")))
    data = torch.tensor(list(source.encode()))
    pieces = data[: len(data) // LENGTH * LENGTH].view(-1, LENGTH)
    return [{"input_ids": piece, "labels": piece} for piece in pieces]


def main(arguments: list[str]) -> float:
    """Train, print a sample, and return the loss on held-out text in nats per byte."""
    defaults = ["--output_dir", "runs/source-code", "--per_device_train_batch_size", "8", "--learning_rate", "3e-3"]
    defaults += ["--lr_scheduler_type", "cosine", "--warmup_steps", "20", "--logging_steps", "20", "--max_steps", "300"]
    (args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses([*defaults, *arguments])
    data = texts()
    config = SwiLAConfig.preset("temporal-swila-tiny", vocab_size=256, bos_token_id=None, eos_token_id=None)
    model = SwiLAForCausalLM(config)
    trainer = Trainer(model, args, train_dataset=data[:-32], eval_dataset=data[-32:])
    trainer.train()
    trainer.save_model()  # weights, configuration and a model card; from_pretrained takes it from there

    prompt = torch.tensor([list(b"def ")], device=model.device)
    sample = model.generate(prompt, max_new_tokens=200, do_sample=True, temperature=0.8)
    print(bytes(sample[0].tolist()).decode(errors="replace"))
    return trainer.evaluate()["eval_loss"]


if __name__ == "__main__":
    print(f"held-out loss: {main(sys.argv[1:]):.3f} nats per byte")
