"""The file of a hashed n-gram classifier: what is written is what is read, and it scores by the plain formula."""

import json
import struct
import zlib
from dataclasses import replace

import numpy as np
import pytest

from antembed.classify.ngram_file import (
    HEAD,
    HashedNgrams,
    HashedNgramsError,
    buckets_of,
    decode_symbols,
    document_scales,
    encode_symbols,
    frequencies,
    hash_words,
    join_gaps,
    load_hashed_ngrams,
    ngram_hashes,
    pack_bits,
    split_gaps,
    unpack_bits,
    weights_of,
)
from antembed.tables.container import DamagedError

TEXTS = [["a", "rose", "is", "a", "rose"], [], ["rose"], ["is", "a"], []]


@pytest.fixture
def model():
    random = np.random.default_rng(0)
    objects = np.sort(random.choice(1 << 8, 90, replace=False))  # many: most words of the tests are among them
    B = random.normal(size=(5, 3)).astype(np.float16).astype(float)
    return HashedNgrams(objects, random.integers(0, 5, 90), random.integers(0, 2, 90), B, np.array([0.5, 0, -0.25]),
               np.array([1.0, 2.0]), ["x", "y", "ž"], bits=8, orders=2)  # fmt: skip


@pytest.fixture
def prefixed(model):
    return replace(model, prefix=2)


def flat(texts, prefix=0):
    starts = np.concatenate([[0], np.cumsum([len(text) for text in texts])]).astype(np.int64)
    return hash_words([word for text in texts for word in text], prefix), starts


def plain_scores(model, texts):
    """The formula, an object at a time."""
    code = {int(j): model.values[q] * model.B[k] for j, k, q in zip(model.objects, model.anchors, model.levels, strict=True)}
    rows = []
    for text in texts:
        runs = [text[at : at + n] for n in (1, 2) for at in range(len(text) - n + 1)]
        found = set()
        for run in runs:
            hashes, _ = ngram_hashes(hash_words(run), np.array([0, len(run)]), len(run))
            found.add(int(buckets_of(hashes[-1:], model.bits)[0]))
        for word in text if model.prefix else ():
            if len(word) > model.prefix:
                hashes, _ = ngram_hashes(hash_words([f"{word[: model.prefix]}\0"]), np.array([0, 1]), 1)
                found.add(int(buckets_of(hashes, model.bits)[0]))
        total = sum((code[j] for j in found if j in code), np.zeros(3))
        rows.append(total / np.sqrt(max(len(runs), 1)) + model.bias)
    return np.array(rows)


def test_scores_with_prefixes_are_the_formula(prefixed):
    scores = prefixed.scores(*flat(TEXTS, 2))
    assert np.abs(scores - plain_scores(prefixed, TEXTS)).max() < 1e-12
    assert np.abs(scores - plain_scores(replace(prefixed, prefix=0), TEXTS)).max() > 0.01
    assert prefixed.predict(TEXTS) == [prefixed.classes[c] for c in scores.argmax(1)]
    parts = prefixed.explain(TEXTS[0])
    assert np.allclose(sum(part for _, part in parts) + prefixed.bias, scores[0])
    assert "ro…" in {run for run, _ in parts}
    with pytest.raises(ValueError, match=r"hashes of words have 1 dimensions; make them with hash_words\(words, 2\)"):
        prefixed.scores(*flat(TEXTS))


def test_scores_are_the_formula(model, monkeypatch):
    scores = model.scores(*flat(TEXTS))
    assert np.abs(scores - plain_scores(model, TEXTS)).max() < 1e-12
    assert np.ptp(scores, axis=0).min() > 0  # some object was known
    monkeypatch.setattr("antembed.classify.ngram_file.PIECE", 2)
    assert np.array_equal(scores, model.scores(*flat(TEXTS)))
    assert model.predict(TEXTS) == [model.classes[c] for c in scores.argmax(1)]
    assert model.scores(*flat([])).shape == (0, 3)
    with pytest.raises(ValueError, match=r"there are 9 words, but the documents end at \[8\]"):
        model.scores(np.zeros(9, np.uint64), np.array([0, 8]))


def test_explained_parts_sum_to_the_score(model):
    parts = model.explain(TEXTS[0])
    assert np.allclose(sum(part for _, part in parts) + model.bias, plain_scores(model, TEXTS[:1])[0])
    assert {run for run, _ in parts} <= {"a", "rose", "is", "a rose", "rose is", "is a"}
    assert model.explain([]) == []


def test_hashes_are_for_ever():
    # Files refer to them: a change of these numbers makes every file useless.
    words = hash_words(["a", "ž"])
    assert words.tolist() == [3405396810240292928, 17208589859623238994]
    hashes, documents = ngram_hashes(words, np.array([0, 2]), 2)
    assert (hashes[2], documents.tolist()) == (12570729213398730780, [0, 0, 0])
    words = hash_words(["a", "žžž"], 2)
    assert words.tolist() == [[3405396810240292928, 0], [13816085351689914551, 4374214579392006425]]
    hashes, documents = ngram_hashes(words, np.array([0, 2]), 1)
    assert (hashes[2], documents.tolist()) == (15700810863635015437, [0, 0, 0])


def test_runs_stay_within_documents():
    words, starts = flat(TEXTS)
    _, documents = ngram_hashes(words, starts, 3)
    assert np.bincount(documents, minlength=5).tolist() == [5 + 4 + 3, 0, 1, 2 + 1, 0]
    assert np.allclose(document_scales(starts, 3) ** -2, [12, 1, 1, 3, 1])


@pytest.mark.parametrize("changes", [{}, {"repeats": True}, {"prefix": 4}, {"repeats": True, "prefix": 4}])
def test_file_round_trip(model, changes, tmp_path):
    model = replace(model, **changes)
    size = model.save(tmp_path / "b.ngrams")
    again = load_hashed_ngrams(tmp_path / "b.ngrams")
    assert size == (tmp_path / "b.ngrams").stat().st_size
    for name in ("objects", "anchors", "levels", "B", "bias", "values"):
        assert np.array_equal(getattr(model, name), getattr(again, name)), name
    for name in ("classes", "bits", "orders", "repeats", "prefix"):
        assert getattr(model, name) == getattr(again, name)
    version = 3 if model.prefix else 2 if model.repeats else 1  # older readers read what they can
    assert (tmp_path / "b.ngrams").read_bytes()[6] == version
    assert again.to_bytes() == model.to_bytes()


def test_a_file_without_objects(model, tmp_path):
    none = np.empty(0, np.int64)
    HashedNgrams(none, none, none, model.B, model.bias, model.values, model.classes, 8, 2).save(tmp_path / "b.ngrams")
    assert (load_hashed_ngrams(tmp_path / "b.ngrams").scores(*flat(TEXTS)) == model.bias).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data[:-1], r"has \d+ bytes, \d+ are expected; copy it again or train it anew"),
        (lambda data: data[:10], "has 10 bytes, its header alone has 20; copy it again or train it anew"),
        (lambda data: b"PK" + data, "is no hashed n-gram classifier: it starts with b'PKantb', expected b'antbag'"),
        (lambda data: b"", "is no hashed n-gram classifier: it starts with b''"),
        (lambda data: data[:6] + struct.pack("<H", 9) + data[8:], "has version 9, this antembed reads up to 3; upgrade"),
        (lambda data: data[:-1] + bytes([data[-1] ^ 1]), "is damaged: its checksum is"),
    ],
)
def test_bad_files(model, tmp_path, change, message):
    path = tmp_path / "b.ngrams"
    path.write_bytes(change(model.to_bytes()))
    with pytest.raises(HashedNgramsError, match=message):
        load_hashed_ngrams(path)


def test_a_damaged_body_with_a_right_checksum(model, tmp_path):
    data = model.to_bytes()
    body = data[HEAD.size :] + b"more"
    magic, version, _, about, _ = HEAD.unpack_from(data)
    (tmp_path / "b.ngrams").write_bytes(HEAD.pack(magic, version, len(body), about, zlib.crc32(body)) + body)
    with pytest.raises(HashedNgramsError, match=r"is damaged \(its parts have \d+ bytes, \d+ were found\); train it anew"):
        load_hashed_ngrams(tmp_path / "b.ngrams")
    with pytest.raises(HashedNgramsError, match="is a folder"):
        load_hashed_ngrams(tmp_path)


@pytest.mark.parametrize("letters", [-1, 1001, 2.0, "two", None])
def test_damaged_prefixes_with_a_right_checksum(model, tmp_path, letters):
    data = model.to_bytes()
    magic, _, _, about, _ = HEAD.unpack_from(data)
    facts = json.loads(zlib.decompress(data[HEAD.size :][:about])) | {"p": letters}
    packed = zlib.compress(json.dumps(facts).encode())
    body = packed + data[HEAD.size + about :]
    (tmp_path / "b.ngrams").write_bytes(HEAD.pack(magic, 3, len(body), len(packed), zlib.crc32(body)) + body)
    with pytest.raises(HashedNgramsError, match=r"its prefixes have .* letters, expected a number up to 1000"):
        load_hashed_ngrams(tmp_path / "b.ngrams")


@pytest.mark.parametrize("skew", [0.02, 0.5, 0.98])
def test_symbols_take_their_entropy(skew):
    random = np.random.default_rng(1)
    symbols = np.minimum(random.geometric(skew, 20_000) - 1, 40)
    weights = weights_of(symbols, 41)
    data = encode_symbols(symbols, weights)
    assert np.array_equal(decode_symbols(data, len(symbols), weights), symbols)
    shares = np.bincount(symbols) / len(symbols)
    entropy = -(shares[shares > 0] * np.log2(shares[shares > 0])).sum() * len(symbols) / 8
    assert entropy - 8 < len(data) < 1.02 * entropy + 40  # weights are rounded to a byte
    assert frequencies(weights).sum() == 1 << 14
    with pytest.raises(DamagedError, match="symbols"):
        decode_symbols(data[:-1], len(symbols), weights)
    with pytest.raises(DamagedError, match="no symbol has a weight"):
        decode_symbols(data, 1, np.zeros(41, np.uint8))


def test_every_symbol_seen_has_a_weight():
    for most in range(1, 3000):
        assert weights_of(np.repeat([0, 1], [most, 1]), 3).tolist() == [255, -(-255 // most), 0]


@pytest.mark.parametrize("members", [[0], [999], [0, 1, 2, 3, 999], list(range(1000)), []])
def test_sets_round_trip(members):
    members = np.array(members, np.int64)
    bits, low, symbols = split_gaps(members, 1000)
    packed = pack_bits(low, bits)
    assert np.array_equal(join_gaps(bits, unpack_bits(packed, len(low), bits), symbols), members)


def test_random_sets_take_little_more_than_their_entropy():
    members = np.sort(np.random.default_rng(0).choice(1 << 18, 5000, replace=False))
    bits, low, symbols = split_gaps(members, 1 << 18)
    size = len(pack_bits(low, bits)) + len(encode_symbols(symbols, weights_of(symbols, 32)))
    p = 5000 / (1 << 18)
    assert size < 1.01 * (1 << 18) / 8 * -(p * np.log2(p) + (1 - p) * np.log2(1 - p))
