"""Autoregressive policies small enough that every sequence can be enumerated.

The vocabulary has V tokens, the last of which (V − 1) ends a response. A response is cut at T tokens: one
that has not ended by then is an outcome of its own, with no end token in its probability. So the outcomes are
the sequences

    ended: one for each prefix of t = 0…T−1 ordinary tokens, followed by the end token,
    truncated: one for each string of T ordinary tokens,

and their probabilities sum to 1. The next-token distributions are a policy whose prompts are the prefixes, in
order of length, then of tokens; any `Policy` with such prompts makes an autoregressive one, with its
temperature and top-k applied at every token, as in decoding. Sequence log-probabilities, scores and Hessians
are sums along the tree of prefixes; Fisher information, success and the rest follow as for any other policy.
"""

from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from esth.errors import InputError
from esth.policies.base import Float, Int, Policy, choose
from esth.policies.linear import LinearSoftmax
from esth.policies.network import TanhSoftmax

MAX_SEQUENCES = 200_000


class Sequences(NamedTuple):
    """Responses as arrays; the leading axes are those of the outcome indices they stand for.

    Attributes:
        tokens: [..., T], the end token where the response is over already.
        mask: [..., T], True at the tokens that were generated, the end token included.
        prefix: [..., T], index of the prefix before each token (0 where masked).
        truncated: [...], True where the response hit the limit without an end token.
    """

    tokens: Int
    mask: NDArray[np.bool_]
    prefix: Int
    truncated: NDArray[np.bool_]


class Autoregressive(Policy):
    """Sequences drawn token by token from `next_token`, whose last prompt axis runs over the prefixes.

    Args:
        next_token: policy over the vocabulary with prompts (*prompts, P), P = `count_prefixes(V, T)`.
        max_length: T, tokens after which a response is cut.

    Raises:
        InputError: a vocabulary without an ordinary token, a prompt axis that does not fit, or too many
            sequences to enumerate.
    """

    def __init__(self, next_token: Policy, max_length: int) -> None:
        self.next_token, self.max_length = next_token, max_length
        self.vocabulary = next_token.n_outcomes
        n_prefixes = count_prefixes(self.vocabulary, max_length)
        if next_token.prompts[-1:] != (n_prefixes,):
            raise InputError(
                f"next_token has prompts {next_token.prompts}: the last must be the {n_prefixes} prefixes "
                f"of vocabulary {self.vocabulary} and length {max_length}"
            )
        self.n_prefixes = n_prefixes
        self.prompts = next_token.prompts[:-1]
        self.dimension = next_token.dimension
        self.n_outcomes = n_prefixes + (self.vocabulary - 1) ** max_length
        self.temperature, self.top_k = next_token.temperature, next_token.top_k
        self._sequences = _enumerate(self.vocabulary, max_length)

    @classmethod
    def bigram(cls, vocabulary: int, max_length: int, *, temperature: float = 1.0, top_k: int | None = None) -> Self:
        """θ is the table of next-token logits [V, V] by previous token, the end token's row first."""
        ordinary = vocabulary - 1
        last = np.full(count_prefixes(vocabulary, max_length), ordinary)
        last[1:] = np.arange(len(last) - 1) % ordinary
        features = np.einsum("pw,vu->pvwu", np.eye(vocabulary)[last], np.eye(vocabulary))
        features = features.reshape(len(last), vocabulary, vocabulary**2)
        return cls(LinearSoftmax(features, temperature=temperature, top_k=top_k), max_length)

    @classmethod
    def random(
        cls,
        rng: np.random.Generator,
        vocabulary: int,
        max_length: int,
        dimension: int,
        *,
        scale: float = 1.0,
        temperature: float = 1.0,
        top_k: int | None = None,
    ) -> Self:
        """Logits affine in θ with Gaussian features of every prefix (`LinearSoftmax.random`)."""
        n = count_prefixes(vocabulary, max_length)
        next_token = LinearSoftmax.random(
            rng, n, vocabulary, dimension, scale=scale, temperature=temperature, top_k=top_k
        )
        return cls(next_token, max_length)

    @classmethod
    def tanh(
        cls,
        rng: np.random.Generator,
        vocabulary: int,
        max_length: int,
        *,
        n_inputs: int = 3,
        hidden: int = 4,
        temperature: float = 1.0,
        top_k: int | None = None,
    ) -> Self:
        """A tanh network of Gaussian features of the whole prefix: nonlinear in θ, no Markov property."""
        inputs = rng.standard_normal((count_prefixes(vocabulary, max_length), n_inputs))
        next_token = TanhSoftmax(inputs, vocabulary, hidden, temperature=temperature, top_k=top_k)
        return cls(next_token, max_length)

    def enumerate(self) -> Sequences:
        """All sequences, in the order of the outcomes: arrays of leading length `n_outcomes`."""
        return self._sequences

    def sequences(self, outcome: ArrayLike) -> Sequences:
        """The sequences behind outcome indices [...]."""
        return Sequences(*(field[np.asarray(outcome)] for field in self._sequences))

    def log_p(self, theta: ArrayLike) -> Float:
        """Log-probability of every sequence: [..., d] -> [..., *prompts, S]."""
        return self._along_tree(self.next_token.log_p(theta))[1]

    def sequence_log_p(self, theta: ArrayLike) -> Float:
        """`log_p` by its full name: [..., d] -> [..., *prompts, S]."""
        return self.log_p(theta)

    def prefix_log_p(self, theta: ArrayLike) -> Float:
        """Log-probability that a response goes on after each prefix: [..., d] -> [..., *prompts, P]."""
        return self._along_tree(self.next_token.log_p(theta))[0]

    def next_log_p(self, theta: ArrayLike, prefix: Sequence[int]) -> Float:
        """Next-token log-probabilities after `prefix`: [..., d] -> [..., *prompts, V]."""
        return self.next_token.log_p(theta)[..., self.prefix_index(prefix), :]

    def prefix_index(self, prefix: Sequence[int]) -> int:
        """Index of a prefix, a sequence of fewer than T ordinary tokens.

        Raises:
            InputError: a prefix of T tokens or more, or with a token that is not ordinary.
        """
        ordinary = self.vocabulary - 1
        if len(prefix) >= self.max_length or any(not 0 <= token < ordinary for token in prefix):
            accepted = f"fewer than {self.max_length} tokens in 0..{ordinary - 1}"
            raise InputError(f"prefix {list(prefix)}: {accepted} are accepted")
        index = 0
        for token in prefix:
            index = 1 + index * ordinary + token
        return index

    def logits(self, theta: ArrayLike) -> Float:
        """Sequence log-probabilities: logits of the policy as a categorical one, normalised already."""
        return self.log_p(theta)

    def jacobian(self, theta: ArrayLike) -> Float:
        """Score of every sequence, the sum of its tokens' scores: [..., d] -> [..., *prompts, S, d]."""
        return self._along_tree(self.next_token.score(theta), derivative=1)[1]

    def logit_hessian(self, theta: ArrayLike) -> Float:
        return self._along_tree(self.next_token.log_p_hessian(theta), derivative=2)[1]

    def sample(self, rng: np.random.Generator, theta: ArrayLike, m: int) -> Int:
        """m responses drawn token by token: [..., d] -> [..., *prompts, m], indices for `sequences`."""
        next_p = np.exp(self.next_token.log_p(theta))
        ordinary = self.vocabulary - 1
        prefix = np.zeros((*next_p.shape[:-2], m), dtype=np.int64)
        outcome = np.full(prefix.shape, -1)
        for _ in range(self.max_length):
            # A response that is over walks on along some branch; its outcome stands already.
            token = choose(rng, np.take_along_axis(next_p, prefix[..., None], axis=-2))
            outcome = np.where((outcome < 0) & (token == ordinary), prefix, outcome)
            prefix = 1 + prefix * ordinary + np.minimum(token, ordinary - 1)
        # The string of T tokens numbered as a prefix of length T stands where its truncated sequence does.
        return np.where(outcome < 0, prefix, outcome)

    def _along_tree(self, step: Float, derivative: int = 0) -> tuple[Float, Float]:
        """Sums of `step` over the tokens of every prefix and of every sequence.

        [..., P, V, *rest] -> [..., P, *rest] and [..., S, *rest], rest being `derivative` axes of length d.
        """
        axis = step.ndim - 2 - derivative
        step = np.moveaxis(step, (axis, axis + 1), (0, 1))
        level, start = np.zeros((1, *step.shape[2:])), 0
        prefixes, ended = [], []
        for _ in range(self.max_length):
            prefixes.append(level)
            extended = level[:, None] + step[start : start + len(level)]
            start += len(level)
            ended.append(extended[:, -1])
            level = extended[:, :-1].reshape(-1, *step.shape[2:])
        sequences = np.concatenate([*ended, level])
        return np.moveaxis(np.concatenate(prefixes), 0, axis), np.moveaxis(sequences, 0, axis)


def count_prefixes(vocabulary: int, max_length: int) -> int:
    """P = 1 + A + … + A^(T−1), A = V − 1 ordinary tokens: the prefixes after which a token is drawn.

    Raises:
        InputError: V < 2, T < 1, or more than MAX_SEQUENCES sequences.
    """
    if vocabulary < 2 or max_length < 1:
        raise InputError("needed: a vocabulary >= 2 (one ordinary token, the end token) and max_length >= 1")
    if max_length * np.log(max(vocabulary - 1, 1)) > np.log(MAX_SEQUENCES) or max_length > MAX_SEQUENCES:
        raise InputError(f"vocabulary {vocabulary}, length {max_length}: more than {MAX_SEQUENCES} sequences")
    return sum((vocabulary - 1) ** t for t in range(max_length))


def _enumerate(vocabulary: int, max_length: int) -> Sequences:
    """Tokens, mask, prefixes and truncation of all sequences: those that end come first."""
    ordinary, n_prefixes = vocabulary - 1, count_prefixes(vocabulary, max_length)
    n = n_prefixes + ordinary**max_length
    tokens = np.full((n, max_length), ordinary, dtype=np.int64)
    mask = np.zeros((n, max_length), dtype=np.bool_)
    prefix = np.zeros((n, max_length), dtype=np.int64)
    # Node k of the tree of prefixes has the children 1 + kA … A + kA; an ended sequence stands at its prefix.
    node = np.arange(n)
    truncated = node >= n_prefixes
    length = np.repeat(np.arange(max_length + 1), [ordinary**t for t in range(max_length + 1)])
    rows = np.flatnonzero(~truncated)
    prefix[rows, length[rows]] = node[rows]
    mask[rows, length[rows]] = True
    for position in range(max_length - 1, -1, -1):
        inside = length > position
        tokens[inside, position] = (node[inside] - 1) % ordinary
        node = np.where(inside, (node - 1) // ordinary, node)
        prefix[inside, position] = node[inside]
        mask[inside, position] = True
    return Sequences(tokens, mask, prefix, truncated)
