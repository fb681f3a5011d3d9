#!/usr/bin/env python3
"""Trains the small tokenizers of tests/text/data/ and writes what they must give: expected.json.

usage: make_tokenizers.py [OUTPUT_FOLDER]

Needs the Python packages tokenizers and sentencepiece. Each tokenizer has the parts of a known
family (normalizer, pre-tokenizer, decoder, special tokens) and a few hundred tokens.
"""

import importlib.metadata
import io
import json
import pathlib
import sys

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, trainers
from tokenizers import pre_tokenizers as pre
from tokenizers import processors

CORPUS = [
    "The quick brown fox jumps over the lazy dog, and it's not the first time they've done so.",
    "Memory bandwidth binds the decoding of one token; arithmetic binds the prompt of 1024 tokens.",
    "We'll see what you're made of: I'm sure he'd say the same, isn't that so? DON'T SHOUT.",
    "In 2023 the cache took 640 bytes per token, in 2024 it took 160.",
    "def main():\n    for i in range(10):\n\t\tprint(i * 3.14159)\n\n\nmain()",
    "Ein schöner Tag in Zürich; été à la plage, señor, þetta reddast.",
    "日本語の文章と中文句子。 Привет, мир! مرحبا بالعالم",
    "the token and the other token, the tokens of the cache and the time of the token",
]

TEXTS = [
    "",
    " ",
    "Hello, world!",
    "The quick brown fox jumps over the lazy dog.",
    " leading and trailing ",
    "runs   of    spaces     and\ttabs\t\tand\n\nnewlines\r\n\r\n  indented\n   ",
    "I'm you're he'd we'll they've isn't 's 't I'M YOU'RE HE'D WE'LL THEY'VE ISN'T",
    "1 12 123 1234 12345 3.14159 1,000,000 ٣٤٥ ²³ Ⅷ ½",
    "😀 👩‍👩‍👧‍👦 🇮🇸 emoji👍🏽end",
    "e\u0301 é A\u030a Å n\u0303 \u1e9b\u0323 ﬁ ① Ω",
    "日本語の文章。中文句子，没有空格 한국어 문장",
    "مرحبا بالعالم، כתב עברי",
    "Привет, мир! Ελληνικά ẞ ſ",
    "<s>special</s> <|endoftext|>in<|im_start|> the <|im_end|>text<unk> <|0.02|>",
    "a<mask>b <mask> c  <mask>  d",
    "word words keyword word.",
    "pneumonoultramicroscopicsilicovolcanoconiosis" * 3,
    "a\u00a0b\u2003c\u3000d\u200be\u2028f\u0085g",
    "▁already▁marked Ġbyte",
    "x = {'key': [1, 2], \"q\": \\n}; // $^+~`|<>=",
    "\x00\x01\x7f control",
]

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


def isolated(pattern):
    return pre.Split(Regex(pattern), "isolated")


def byte_level(add_prefix_space=False, use_regex=True):
    return pre.ByteLevel(add_prefix_space=add_prefix_space, use_regex=use_regex)


def special(text, **options):
    return AddedToken(text, special=True, normalized=False, **options)


def train(pre_tokenizer, special_tokens, normalizer=None, vocab_size=340, **model_options):
    tokenizer = Tokenizer(models.BPE(**model_options))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=special_tokens,
        initial_alphabet=pre.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def gpt2():
    tokenizer = train(byte_level(), [special("<|endoftext|>")])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def llama3():
    tokens = ["<|begin_of_text|>", "<|end_of_text|>", "<|im_start|>", "<|im_end|>"]
    pre_tokenizer = pre.Sequence([isolated(LLAMA3), byte_level(use_regex=False)])
    tokenizer = train(pre_tokenizer, [special(t) for t in tokens], ignore_merges=True)
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(
                single="<|begin_of_text|> $A",
                pair="<|begin_of_text|> $A <|begin_of_text|> $B:1",
                special_tokens=[("<|begin_of_text|>", 0)],
            ),
        ]
    )
    return tokenizer


def qwen2():
    pre_tokenizer = pre.Sequence([isolated(QWEN2), byte_level(use_regex=False)])
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer = train(pre_tokenizer, [special(t) for t in tokens], normalizers.NFC())
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False)])
    return tokenizer


def smollm():
    pre_tokenizer = pre.Sequence([pre.Digits(individual_digits=True), byte_level()])
    return train(pre_tokenizer, [special(t) for t in ["<|endoftext|>", "<|im_start|>"]])


def pythia():
    tokenizer = train(byte_level(), [special("<|endoftext|>")], normalizers.NFC())
    # GPT-NeoX marks runs of blanks as added tokens that are neither special nor raw.
    tokenizer.add_tokens([AddedToken(" " * n, normalized=True) for n in range(8, 1, -1)])
    return tokenizer


def falcon():
    pre_tokenizer = pre.Sequence(
        [
            pre.Punctuation("contiguous"),
            byte_level(),
            pre.Digits(individual_digits=False),
            isolated("[0-9][0-9][0-9]"),
        ]
    )
    return train(pre_tokenizer, [special(">>TITLE<<"), special("<|endoftext|>")])


def olmo():
    tokenizer = train(byte_level(add_prefix_space=True), [special("<|endoftext|>")],
                      normalizers.NFC())
    tokenizer.add_special_tokens([special("<mask>", lstrip=True), special("<s>", rstrip=True)])
    tokenizer.add_tokens([AddedToken("word", single_word=True, normalized=True)])
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 5), ("<s>", 6))
    return tokenizer


def whisper():
    tokens = ["<|endoftext|>", "<|startoftranscript|>"]
    tokens += [f"<|{i * 0.02:.2f}|>" for i in range(30)]
    tokenizer = train(byte_level(), [special("<|endoftext|>")])
    tokenizer.add_special_tokens([special(t) for t in tokens])
    ids = [(t, tokenizer.token_to_id(t)) for t in tokens[:2]]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|startoftranscript|> $A <|endoftext|>",
        pair="<|startoftranscript|> $A $B <|endoftext|>",
        special_tokens=ids,
    )
    return tokenizer


def llama2():
    """SentencePiece's rules as tokenizer.json writes them: blanks marked, bytes for the rest."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    mark = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    tokenizer.normalizer = normalizers.Sequence(mark)
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=460, special_tokens=["<unk>", "<s>", "</s>"] + bytes_, max_token_length=12,
        show_progress=False)
    tokenizer.pre_tokenizer = pre.Metaspace(prepend_scheme="always", split=True)
    tokenizer.train_from_iterator(CORPUS[:5], trainer)  # ASCII: the rest takes bytes
    tokenizer.pre_tokenizer = None
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
         decoders.Strip(" ", 1, 0)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
    data = json.loads(tokenizer.to_str())
    data["added_tokens"] = data["added_tokens"][:3]  # the bytes are no special tokens
    return Tokenizer.from_str(json.dumps(data))


def metaspace():
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    steps = [normalizers.NFKC(), normalizers.Lowercase(), normalizers.Replace(Regex(" {2,}"), " ")]
    tokenizer.normalizer = normalizers.Sequence(steps + [normalizers.Strip()])
    tokenizer.pre_tokenizer = pre.Sequence(
        [pre.Metaspace(prepend_scheme="first"), pre.Split("-", "removed"),
         pre.Split(Regex("[.,!?]"), "merged_with_previous")])
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<unk>", "<s>"], show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def words():
    """No family: pre-tokenizers that the others leave out."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.NFKD()
    tokenizer.pre_tokenizer = pre.Sequence(
        [pre.WhitespaceSplit(), pre.Whitespace(), pre.Punctuation(),
         pre.Split(Regex("[aeiou]+"), "merged_with_next")])
    tokenizer.decoder = decoders.Fuse()
    trainer = trainers.BpeTrainer(vocab_size=240, special_tokens=["<unk>"], show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


FAMILIES = [gpt2, llama3, qwen2, smollm, pythia, falcon, olmo, whisper, llama2, metaspace, words]

SENTENCEPIECE = {
    # Llama: BPE, digits apart, bytes for what is unknown, nothing normalized.
    "llama-spm": dict(model_type="bpe", vocab_size=420, byte_fallback=True, split_digits=True,
                      normalization_rule_name="identity", remove_extra_whitespaces=False,
                      allow_whitespace_only_pieces=True, character_coverage=0.99,
                      user_defined_symbols=["<|im_start|>", "<|im_end|>"]),
    # T5: unigram, runs of blanks become one; its character map alone would take 240 kB.
    "t5-spm": dict(model_type="unigram", vocab_size=240, pad_id=0, eos_id=1, unk_id=2, bos_id=-1,
                   normalization_rule_name="identity"),
}


def train_sentencepiece(options):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS * 4), model_writer=model, minloglevel=2,
        hard_vocab_limit=False, num_threads=1, **options)
    return model.getvalue()


def case(text, ids, decoded, with_special=None):
    """In the order of TEXTS. A `decoded` left out is the text, a `with_special` is `decoded`."""
    entry = {"ids": ids}
    if decoded != text:
        entry["decoded"] = decoded
    if with_special is not None and with_special != decoded:
        entry["with_special"] = with_special
    return entry


def expected_of(tokenizer):
    cases = []
    for text in TEXTS:
        ids = tokenizer.encode(text).ids
        cases.append(case(text, ids, tokenizer.decode(ids),
                          tokenizer.decode(ids, skip_special_tokens=False)))
    return cases


def without_control_tokens(text):
    """They are found in a text by transformers, not by SentencePiece."""
    return text.replace("<s>", "").replace("</s>", "")


def expected_of_sentencepiece(model):
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    cases = []
    for text in TEXTS:
        ids = processor.encode(without_control_tokens(text))
        cases.append(case(without_control_tokens(text), ids, processor.decode(ids)))
    return cases


def main():
    here = pathlib.Path(__file__).parent
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else here / "data"
    folder.mkdir(parents=True, exist_ok=True)
    versions = {p: importlib.metadata.version(p) for p in ["tokenizers", "sentencepiece"]}
    expected = {"made_with": versions, "texts": TEXTS, "tokenizers": {}}
    for family in FAMILIES:
        tokenizer = Tokenizer.from_str(family().to_str())
        name = family.__name__ + ".json"
        compact = json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False,
                             separators=(",", ":"))
        (folder / name).write_text(compact + "\n")
        expected["tokenizers"][name] = expected_of(tokenizer)
    for stem, options in SENTENCEPIECE.items():
        model = train_sentencepiece(options)
        (folder / (stem + ".model")).write_bytes(model)
        expected["tokenizers"][stem + ".model"] = expected_of_sentencepiece(model)
    lines = json.dumps(expected, ensure_ascii=False, indent=None, separators=(",", ":"))
    (folder / "expected.json").write_text(lines.replace('{"ids"', '\n{"ids"') + "\n")


if __name__ == "__main__":
    main()
