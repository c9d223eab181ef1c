"""Product quantisation: codes and books against the table they stand for, the file against the layer, and honest bytes."""

import numpy as np
import pytest
import torch

import antembed as ant
from antembed.baselines.product_quantized import learn_book, nearest, quantize
from antembed.tables.encodings import pack_codes, unpack_codes

V, d = 300, 12


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)  # tables this small are faster so, on a busy machine many times


def error(layer, E):
    return float((layer.to_dense() - E).square().sum() / E.square().sum())


def test_a_planted_book_is_found():
    """Vectors that are made of 4 × 3 pieces are kept exactly by books that can hold them."""
    books = torch.randn(3, 4, d // 3)
    E = torch.stack([books[m][torch.randint(0, 4, (V,))] for m in range(3)], 1).flatten(1)
    assert error(quantize(E, parts=3, bits=4), E) < 1e-10


@pytest.mark.parametrize("lloyd", [1, 10])
def test_each_iteration_lowers_the_error(lloyd):
    x = torch.randn(500, 3)

    def distance(book):
        return float((x - book[nearest(x, book)]).square().sum())

    books = [learn_book(x, 8, n, torch.Generator().manual_seed(0)) for n in (0, lloyd)]
    assert distance(books[1]) < distance(books[0])
    distances = (x[:, None] - books[1]).square().sum(2)
    chosen = distances.gather(1, nearest(x, books[1])[:, None])[:, 0]
    torch.testing.assert_close(chosen, distances.amin(1), atol=1e-5, rtol=0)  # of two that are equally near either will do


def test_more_bits_and_more_parts_are_closer():
    E = torch.randn(V, d)
    errors = [error(quantize(E, parts=parts, bits=bits), E) for parts, bits in ((3, 4), (6, 4), (12, 4), (12, 6))]
    assert errors == sorted(errors, reverse=True)
    assert errors[2] < 0.02  # sixteen levels a column; rounding to an even grid over ±3 has .012, and .0095 is the best


@pytest.mark.parametrize(("parts", "bits"), [(4, 8), (3, 4), (12, 4), (1, 2)])
@pytest.mark.parametrize("values", ["fp32", "fp16"])
def test_the_file_says_what_the_layer_says(tmp_path, parts, bits, values):
    layer = quantize(ant.baselines.FullEmbedding(V, d, 7), parts=parts, bits=bits)
    table = layer.export(tmp_path / "t.ant", values=values)
    np.testing.assert_allclose(table[:], layer.to_dense().numpy(), atol=0 if values == "fp32" else 1e-3)
    assert not table[7].any()
    assert table[[[3, 1], [2, 7]]].shape == (2, 2, d)
    code_bytes = V * (parts if bits > 4 else -(-parts // 2))
    assert 0 < table.size - code_bytes - layer.books.numel() * (4 if values == "fp32" else 2) < 400  # the header
    assert table.parameters == layer.usage().parameters == V * parts + layer.books.numel()
    if values == "fp32":
        assert layer.usage().bytes == table.size == (tmp_path / "t.ant").stat().st_size


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_two_codes_share_a_byte(parts):
    codes = np.random.default_rng(0).integers(0, 16, (9, parts))
    stored = pack_codes(codes, 16)
    assert stored.shape == (9, -(-parts // 2))
    np.testing.assert_array_equal(unpack_codes(stored, parts, 16), codes)
    np.testing.assert_array_equal(unpack_codes(pack_codes(codes, 17), parts, 17), codes)


def test_it_is_an_embedding_for_evaluation(tmp_path):
    full = ant.baselines.FullEmbedding(V, d, -1)
    layer = quantize(full, parts=6)
    ids = torch.tensor([[5, 299], [0, 4]], dtype=torch.int32)
    assert layer(ids).shape == (2, 2, d)
    assert layer(ids)[0, 1].eq(0).all()
    torch.testing.assert_close(layer.coordinates(ids)[0], layer.to_dense()[ids.long()])
    assert (layer.num_embeddings, layer.embedding_dim, layer.padding_idx) == (V, d, V - 1)
    assert ant.param_groups(layer, l1_penalty=0.1) == []
    assert torch.equal(quantize(full, parts=6).codes, layer.codes)  # by its seed
    with pytest.raises(TypeError, match=r"write it with layer.export\(path\)"):
        ant.export(layer, tmp_path / "t.ant")
    with pytest.raises(TypeError, match="cannot grow; add objects before quantizing it"):
        layer.add_objects(1)
    with pytest.raises(IndexError, match="id 300 is outside a table of 300 rows"):
        layer(torch.tensor([300]))


def test_wrong_parts():
    with pytest.raises(ValueError, match="12 dimensions cannot be cut into 5 equal parts; take a divisor of 12"):
        quantize(torch.zeros(V, d), parts=5)
    with pytest.raises(ValueError, match="1 to 8 bits, not 9"):
        quantize(torch.zeros(V, d), parts=4, bits=9)
    with pytest.raises(ValueError, match="1 rows, padding included, has nothing to learn codebooks from"):
        quantize(torch.zeros(1, d), parts=4, padding_idx=0)
    with pytest.raises(ValueError, match="one of fp32, fp16, not 'int8'"):
        quantize(torch.zeros(V, d), parts=4).export("t.ant", values="int8")
