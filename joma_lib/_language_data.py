"""Word-level corpora: WikiText from a folder, a zip or the hub, its tokens, its vocabulary, and a corpus made on the spot.

The tokens follow the rules of the tutorial that the published experiment started from: lower case; . , ( ) ! ? and '
stand apart; " is dropped; ; and : become spaces. The vocabulary is ordered by falling count, ties alphabetically, with
`<unk>` first, so it is the same in every process. Chapter: wikitext.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from joma_lib import runs

__all__ = ["SPLITS", "Corpus", "load_wikitext", "make_corpus", "synthetic_corpus", "tokenize"]

SPLITS = ("train", "valid", "test")
UNKNOWN = "<unk>"

_RULES = [(re.compile(r"[.,()!?']"), r" \g<0> "), (re.compile(r'"'), ""), (re.compile(r"<br />|[;:]"), " ")]
_REVISION = "b08601e04326c79dfdd32d625aee71d232d685c3"
_HELD_OUT = {  # the two data sets share their validation and test articles
    "valid": "391e61aa30d9e6e8df638b3bae4279c1c07744cd70e85597af2d25e1127dc5cf",
    "test": "95c00987012b5f52a0ccc98405b19795ef1f4725cef3b0d2cf9a2052dbc2b872",
}
_CHECKSUMS: dict[str, dict[str, str]] = {
    "wikitext-2": {"train": "6c651be84115097d1829094672119cf94200bea81f30bdab8a886b065a1c3c47", **_HELD_OUT},
    "wikitext-103": dict(_HELD_OUT),
}


@dataclass(frozen=True)
class Corpus:
    """Three splits of token ids over one vocabulary; `fingerprint` is the SHA-256 of ids and words.

    >>> make_corpus({"train": "a b a", "valid": "b c"}).valid.tolist()
    [2, 0]
    """

    name: str
    vocabulary: tuple[str, ...] = field(repr=False)
    train: NDArray[np.int32] = field(repr=False)
    valid: NDArray[np.int32] = field(repr=False)
    test: NDArray[np.int32] = field(repr=False)

    @property
    def fingerprint(self) -> str:
        return runs.fingerprint(self.train, self.valid, self.test, np.array(self.vocabulary))


def tokenize(line: str) -> list[str]:
    """Return the tokens of a line of text by the tutorial's rules.

    >>> tokenize('He said: "No, it isn\\'t."')
    ['he', 'said', 'no', ',', 'it', 'isn', "'", 't', '.']
    """
    line = line.lower()
    for pattern, replacement in _RULES:
        line = pattern.sub(replacement, line)
    return line.split()


def make_corpus(texts: Mapping[str, str], *, name: str = "text") -> Corpus:
    """Return the corpus of texts by split (train, valid, and if wanted test); the vocabulary is that of train.

    Raises
    ------
    ValueError : train or valid is missing, or has no token.

    >>> make_corpus({"train": "the cat, the dog", "valid": "the bird"}).vocabulary
    ('<unk>', 'the', ',', 'cat', 'dog')
    """
    unknown = sorted(set(texts) - set(SPLITS))
    if unknown:
        raise ValueError(f"the split {unknown[0]!r} is unknown; use train, valid and test")
    tokens = {split: tokenize(texts.get(split, "")) for split in SPLITS}
    for split in ("train", "valid"):
        if not tokens[split]:
            raise ValueError(f"the split {split} holds no token; give it some text")
    counts = Counter(tokens["train"])
    counts.pop(UNKNOWN, None)
    vocabulary = (UNKNOWN, *sorted(counts, key=lambda word: (-counts[word], word)))
    index = {word: i for i, word in enumerate(vocabulary)}
    ids = {s: np.array([index.get(word, 0) for word in tokens[s]], dtype=np.int32) for s in SPLITS}
    return Corpus(name, vocabulary, **ids)


def load_wikitext(
    name: str = "wikitext-2",
    source: str | os.PathLike[str] | None = None,
    *,
    cache: str | os.PathLike[str] | None = None,
) -> Corpus:
    """Return WikiText-2 or WikiText-103 (word level, Merity et al., 2016, CC BY-SA 3.0) as token ids.

    Parameters
    ----------
    name : "wikitext-2" or "wikitext-103"
    source : a folder with train.txt, valid.txt, test.txt (or wiki.train.tokens, ...), or the published zip; None: the
        hub's copy at a pinned revision, through `datasets`
    cache : a folder in which to keep the token ids, keyed by the text's content; None: no cache

    Raises
    ------
    ValueError : an unknown name; no such source; a split that is missing, or whose text is not the published one
        (truncated, changed, another data set), by SHA-256; no network and no source. The training split of
        WikiText-103 has no pinned checksum.

    >>> load_wikitext("wikitext-2", "no-such-folder")
    Traceback (most recent call last):
    ValueError: 'no-such-folder' does not exist; name a folder or a zip that holds wikitext-2
    """
    if name not in _CHECKSUMS:
        raise ValueError(f"name is {name!r}; use 'wikitext-2' or 'wikitext-103'")
    texts = _from_hub(name) if source is None else _from_source(name, Path(source))
    sums = {split: _checksum(texts[split]) for split in SPLITS}
    for split, expected in _CHECKSUMS[name].items():
        if sums[split] != expected:
            raise ValueError(
                f"the {split} split is not that of {name} (SHA-256 {sums[split][:8]}…, not {expected[:8]}…): it is "
                "truncated, changed or another text; fetch it again"
            )
    if cache is None:
        return make_corpus(texts, name=name)
    key = hashlib.sha256("".join(("1", name, *sums.values())).encode()).hexdigest()[:16]
    path = Path(cache) / f"{name}-{key}.npz"
    if not path.is_file():
        corpus = make_corpus(texts, name=name)
        _store(corpus, path)
        return corpus
    try:
        with np.load(path, allow_pickle=False) as kept:
            return Corpus(name, tuple(kept["vocabulary"].tolist()), *(kept[split] for split in SPLITS))
    except Exception as error:
        raise ValueError(f"the cached ids {path.name} are damaged; delete that file") from error


def synthetic_corpus(*, tokens: int = 60_000, words: int = 200, topics: int = 8, seed: int = 0) -> Corpus:
    """Return a corpus drawn on the spot, with Zipf frequencies, local grammar and topics that last.

    Each sentence (8 to 16 words and a full stop) has a topic, which lasts for some sentences; half of its words come from
    the topic's own tenth of the vocabulary, a third follow the word before by a fixed rule, the rest are drawn by
    Zipf's law. So a word is predicted by the one before it, and by topic words further back. A tenth is held out.

    >>> synthetic_corpus(tokens=500, words=40, topics=2).valid.shape
    (50,)
    """
    if tokens < 100 or words < 20 or not 1 <= topics <= words // 4:
        raise ValueError(
            f"tokens, words, topics are {tokens}, {words}, {topics}; use at least 100, 20, and 1 to words / 4"
        )
    rng = np.random.default_rng(seed)
    zipf = 1 / np.arange(1, words + 1)
    zipf /= zipf.sum()
    follows = rng.permutation(words)
    own = np.array([rng.choice(words, max(4, words // 10), replace=False) for _ in range(topics)])
    out: list[str] = []
    topic = 0
    while len(out) < tokens:
        if rng.random() < 0.2:
            topic = int(rng.integers(topics))
        word = int(rng.choice(words, p=zipf))
        for kind in rng.random(int(rng.integers(8, 17))):
            if kind < 1 / 2:
                word = int(own[topic][int(len(own[topic]) * rng.random() ** 2)])
            elif kind < 5 / 6:
                word = int(follows[word])
            else:
                word = int(rng.choice(words, p=zipf))
            out.append(f"w{word}")
        out.append(".")
    cut = tokens - tokens // 10
    return make_corpus({"train": " ".join(out[:cut]), "valid": " ".join(out[cut:tokens])}, name="synthetic")


def _from_source(name: str, source: Path) -> dict[str, str]:
    if not source.exists():
        raise ValueError(f"{os.fspath(source)!r} does not exist; name a folder or a zip that holds {name}")
    if source.is_dir():
        files = {path.name: path.read_bytes for path in source.iterdir() if path.is_file()}
        return _pick(name, source.name, files)
    try:
        with zipfile.ZipFile(source) as archive:
            members = {Path(item).name: item for item in archive.namelist() if not item.endswith("/")}
            return _pick(
                name, source.name, {base: (lambda m=item: archive.read(m)) for base, item in members.items()}
            )
    except (zipfile.BadZipFile, EOFError) as error:
        raise ValueError(
            f"{source.name} is neither a folder nor a whole zip; fetch it again, or unpack it"
        ) from error


def _pick(name: str, where: str, files: Mapping) -> dict[str, str]:
    texts = {}
    for split in SPLITS:
        names: Sequence[str] = (f"{split}.txt", f"wiki.{split}.tokens", f"{split}.tokens")
        found = [item for item in names if item in files]
        if not found:
            raise ValueError(f"{where} lacks {names[0]} (or {names[1]}); it must hold the splits of {name}")
        try:
            texts[split] = files[found[0]]().decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{found[0]} of {where} is no UTF-8 text; fetch it again") from error
    return texts


def _from_hub(name: str) -> dict[str, str]:
    from joma_lib import _lazy

    datasets = _lazy.require("datasets", extra="pretrained")
    try:
        found = datasets.load_dataset("Salesforce/wikitext", f"{name}-v1", revision=_REVISION)
    except Exception as error:
        raise ValueError(
            f"{name} could not be fetched ({type(error).__name__}); connect to the network, or name a folder or zip "
            "that holds it as source"
        ) from error
    hub = dict(zip(SPLITS, ("train", "validation", "test"), strict=True))
    return {split: "\n".join(found[hub[split]]["text"]) for split in SPLITS}


def _checksum(text: str) -> str:
    """SHA-256 of the lines that are not blank, stripped: the same for a file and for the hub's rows."""
    lines = (line.strip() for line in text.split("\n"))
    return hashlib.sha256("\n".join(line for line in lines if line).encode()).hexdigest()


def _store(corpus: Corpus, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, part = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=".npz")
    try:
        with os.fdopen(handle, "wb") as file:
            arrays = {split: getattr(corpus, split) for split in SPLITS}
            np.savez_compressed(file, vocabulary=np.array(corpus.vocabulary), **arrays)
        os.chmod(part, 0o644)
        os.replace(part, path)
    finally:
        Path(part).unlink(missing_ok=True)
