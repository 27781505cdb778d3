"""Train a tiny Temporal SwiLA with transformers' Trainer, on the bytes of this library's source code.

python examples/train_with_transformers.py --max_steps 300     # and any option of Trainer; a few minutes on a CPU
swila generate runs/source-code "def " --temperature 0.8
"""

import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import HfArgumentParser, PreTrainedTokenizerFast, Trainer, TrainingArguments

import swila
from swila import SwiLAConfig, SwiLAForCausalLM

DEFAULTS = {"output_dir": "runs/source-code", "per_device_train_batch_size": 8, "learning_rate": 3e-3, "max_steps": 300}
DEFAULTS |= {"lr_scheduler_type": "cosine", "warmup_steps": 20, "logging_steps": 20}
DEFAULTS |= {"dataloader_pin_memory": torch.cuda.is_available()}


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token for each of the 256 bytes."""
    letters = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(letters, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def main(arguments: list[str]) -> float:
    """Train, save the model and the tokenizer, print a sample, and return the held-out loss in nats per byte."""
    defaults = [f"--{name}={value}" for name, value in DEFAULTS.items()]
    (args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses([*defaults, *arguments])
    tokenizer = byte_tokenizer()
    files = sorted(Path(swila.__file__).parent.rglob("*.py"))
    pieces = torch.tensor(tokenizer("".join(path.read_text() for path in files))["input_ids"]).split(256)[:-1]
    data = [{"input_ids": piece, "labels": piece} for piece in pieces]  # the model shifts the labels
    config = SwiLAConfig.preset("temporal-swila-tiny", vocab_size=256, bos_token_id=None, eos_token_id=None)
    model = SwiLAForCausalLM(config)
    trainer = Trainer(model, args, train_dataset=data[:-32], eval_dataset=data[-32:])
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    trainer.save_model()
    tokenizer.save_pretrained(args.output_dir)
    print("def " + swila.generate(model, "def ", tokenizer, max_new_tokens=200, temperature=0.8).texts[0])
    return trainer.evaluate()["eval_loss"]


if __name__ == "__main__":
    print(f"held-out loss: {main(sys.argv[1:]):.3f} nats per byte")
