"""Trains a small tokenizer and encodes texts with it, using Hugging Face's `tokenizers` library:
`python tests/reference/tokenizer/make.py` writes `tokenizer.json` and `encoded.json` into the folder of this script."""

import json
import pathlib

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

HERE = pathlib.Path(__file__).parent
TEXTS = [
    "One sheep, two sheep: 1,234 sheep.\n\n    indented, and ünïcödé 🐑 as well\n",
    "<end> in the middle<end>",
    "",
    "one  two   three" * 40,
]


def main():
    tokenizer = Tokenizer(models.BPE(unk_token=None))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<begin>", "<end>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<begin> $A", special_tokens=[("<begin>", tokenizer.token_to_id("<begin>"))]
    )
    encoded = {
        "texts": TEXTS,
        "special": [tokenizer.encode(text).ids for text in TEXTS],
        "plain": [tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS],
    }
    # As in some published tokenizers. Reading a document must ignore both.
    tokenizer.enable_truncation(max_length=16)
    tokenizer.enable_padding(length=32)
    tokenizer.save(str(HERE / "tokenizer.json"))
    lists = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in encoded.items())
    (HERE / "encoded.json").write_text(f"{{\n{lists}\n}}\n")


main()
