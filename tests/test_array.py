"""Dtypes, namespaces and the checks of weights and probabilities that every other module relies on."""

import warnings

import numpy as np
import pytest
import torch

from esth._array import check_probability, check_weights, floating, is_torch, namespace, safe_log, times
from esth.errors import InputError


def test_namespace_is_numpy_unless_a_tensor_is_among_the_values():
    assert namespace() is np
    assert namespace([1.0], 2, np.ones(2)) is np
    assert namespace([1.0], torch.ones(2)).__name__ == "array_api_compat.torch"
    assert is_torch(torch.ones(1)) and not is_torch(np.ones(1))


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (([1, 2], 3), np.float64),
        ((np.array([1, 2]),), np.float64),
        ((np.array([True]),), np.float64),
        ((np.ones(2, np.float32), 3), np.float32),
        ((np.ones(2, np.float32), [0.1, 0.2]), np.float32),
        ((np.ones(2, np.float32), np.arange(2)), np.float32),
        ((np.ones(2, np.float32), np.ones(2)), np.float64),
        ((np.ones(2, np.float16),), np.float32),
    ],
)
def test_floating_takes_the_widest_floating_dtype_of_the_arrays(values, dtype):
    xp, *arrays = floating(*values)
    assert xp is np
    assert all(a.dtype == dtype for a in arrays)


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ((torch.tensor([1, 2]), 3.5), torch.float64),
        ((torch.ones(2), [0.1]), torch.float32),
        ((torch.ones(2), np.ones(2)), torch.float32),
        ((torch.ones(2), torch.ones(2, dtype=torch.float64)), torch.float64),
        ((torch.ones(2, dtype=torch.bfloat16),), torch.float32),
        ((torch.ones(2, dtype=torch.float16), 1), torch.float32),
    ],
)
def test_floating_tensors(values, dtype):
    _, *tensors = floating(*values)
    assert all(torch.is_tensor(t) and t.dtype == dtype for t in tensors)


def test_floating_keeps_gradients_and_warns_of_nothing():
    x = torch.ones(3, dtype=torch.float64, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, y, z = floating(x, torch.ones(3))
    assert y is x and not z.requires_grad


def test_safe_log_of_zero_is_minus_infinity():
    assert safe_log(np.array([0.0, 1.0, 5e-324])).tolist() == [-np.inf, 0.0, np.log(5e-324)]
    x = torch.tensor([0.0, 2.0], dtype=torch.float64, requires_grad=True)
    torch.where(x > 0, safe_log(x), 0.0).sum().backward()
    assert x.grad.tolist() == [0.0, 0.5]


def test_zero_times_infinity_is_zero():
    product = times([0.0, -np.inf, 0.0, 2.0, np.inf], [np.inf, 0.0, 0.0, -np.inf, 3.0])
    assert product.tolist() == [0.0, 0.0, 0.0, -np.inf, np.inf]
    assert times(2, np.ones((2, 1)) * [1.0, 3.0]).tolist() == [[2.0, 6.0], [2.0, 6.0]]


def test_uniform_weights_where_none_are_given():
    w = check_weights(None, np.zeros((3, 4)))
    assert w.shape == (3, 4) and np.all(w == 0.25)


@pytest.mark.parametrize(
    ("weights", "part"),
    [
        ([0.5, 0.4], "sum to 1 (a sum is off by 0.1)"),
        ([[0.5, 0.5], [0.5, 0.5 + 1e-6]], "sum to 1"),
        ([1.5, -0.5], "must not be negative (smallest: -0.5)"),
        ([1.0, -1e-300], "must not be negative"),
        ([1.0], "for 2 members"),
        (1.0, "for 2 members"),
        ([0.2, 0.3, 0.5], "for 2 members"),
        ([np.nan, 1.0], "finite"),
        ([np.inf, -np.inf], "finite"),
    ],
)
def test_bad_weights_are_refused_in_one_line(weights, part):
    with pytest.raises(InputError) as error:
        check_weights(weights, np.zeros(2))
    assert part in str(error.value) and "\n" not in str(error.value)


def test_a_population_needs_members():
    for like in (np.zeros((3, 0)), np.array(0.5)):
        with pytest.raises(InputError, match="N >= 1"):
            check_weights(None, like)


def test_signed_weights_only_where_asked():
    assert check_weights([1.5, -0.5], np.zeros(2), signed=True).tolist() == [1.5, -0.5]
    with pytest.raises(InputError, match="sum to 1"):
        check_weights([1.5, -0.4], np.zeros(2), signed=True)


def test_rounding_of_the_sum_is_forgiven_and_more_is_not():
    n = 1000
    w = np.random.default_rng(0).dirichlet(np.ones(n))
    check_weights(w, np.zeros(n))
    check_weights(w.astype(np.float32), np.zeros(n, np.float32))
    with pytest.raises(InputError):
        check_weights(w * 1.0001, np.zeros(n))
    with pytest.raises(InputError):
        check_weights((w * 1.01).astype(np.float32), np.zeros(n, np.float32))


def test_weights_of_empty_batches_pass():
    assert check_weights(np.zeros((0, 2)), np.zeros((0, 2))).shape == (0, 2)


def test_weights_take_the_dtype_and_kind_of_the_values():
    assert check_weights([0.5, 0.5], np.zeros(2, np.float32)).dtype == np.float32
    assert check_weights(np.array([0.5, 0.5], np.float32), np.zeros(2)).dtype == np.float64
    tensor = check_weights(np.array([0.5, 0.5]), torch.zeros(2, dtype=torch.float32))
    assert torch.is_tensor(tensor) and tensor.dtype == torch.float32
    assert check_weights(torch.tensor([0.5, 0.5]), torch.zeros(2, dtype=torch.float64)).dtype == torch.float64
    with pytest.raises(InputError, match="torch tensor"):
        check_weights(torch.tensor([0.5, 0.5]), np.zeros(2))


@pytest.mark.parametrize("p", [[-1e-300], [1.0000000000000002], [0.5, np.nan], [np.inf]])
def test_probabilities_outside_the_unit_interval_are_refused(p):
    with pytest.raises(InputError, match=r"\[0, 1\]"):
        check_probability(p)


def test_probabilities_at_the_ends_pass():
    assert check_probability([0, 1, 5e-324]).tolist() == [0.0, 1.0, 5e-324]
    assert check_probability(np.zeros((0, 3))).shape == (0, 3)
