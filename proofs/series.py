"""Taylor coefficients by power-series recurrences: exact, and far faster than SymPy's `series` on the nested
exp and log of a softmax."""

import sympy as sp


def taylor(expression: sp.Expr, x: sp.Symbol, order: int) -> list[sp.Expr]:
    """The coefficients of x^0 ... x^order of `expression` at x = 0, each expanded.

    Sums, products, powers, exp and log are expanded by recurrence; anything else, and a form that is singular
    at 0 (a removable singularity like (exp(x) - 1)/x), by SymPy's `series`.
    """
    try:
        return [sp.expand(c) for c in _coefficients(sp.sympify(expression), x, order)]
    except ZeroDivisionError:
        truncated = sp.series(expression, x, 0, order + 1).removeO()
        return [sp.expand(truncated).coeff(x, k) for k in range(order + 1)]


def _coefficients(e: sp.Expr, x: sp.Symbol, n: int) -> list[sp.Expr]:
    if not e.has(x):
        return [e] + [sp.S.Zero] * n
    if e == x:
        return [sp.Integer(k == 1) for k in range(n + 1)]
    if e.is_Add:
        return [sp.Add(*terms) for terms in zip(*(_coefficients(a, x, n) for a in e.args), strict=True)]
    if e.is_Mul:
        product, *factors = (_coefficients(a, x, n) for a in e.args)
        for factor in factors:
            product = _product(product, factor, n)
        return product
    if isinstance(e, sp.exp):
        return _exp(_coefficients(e.args[0], x, n), n)
    if isinstance(e, sp.log):
        return _log(_coefficients(e.args[0], x, n), n)
    if e.is_Pow and not e.exp.has(x):
        return _power(_coefficients(e.base, x, n), e.exp, n)
    raise ZeroDivisionError("no recurrence for this function")


def _product(a: list, b: list, n: int) -> list:
    return [sp.expand(sp.Add(*(a[j] * b[k - j] for j in range(k + 1)))) for k in range(n + 1)]


def _exp(a: list, n: int) -> list:
    # y' = a' y
    y = [sp.exp(a[0])]
    for k in range(1, n + 1):
        y.append(sp.expand(sp.Add(*(j * a[j] * y[k - j] for j in range(1, k + 1))) / k))
    return y


def _log(a: list, n: int) -> list:
    # a y' = a'
    scale = _nonzero(a[0])
    y = [sp.log(scale)]
    for k in range(1, n + 1):
        tail = sp.Add(*(j * y[j] * a[k - j] for j in range(1, k)))
        y.append(sp.expand((a[k] - tail / k) / scale))
    return y


def _power(a: list, exponent: sp.Expr, n: int) -> list:
    if exponent.is_Integer and exponent > 0 and a[0] == 0:
        y = a
        for _ in range(min(int(exponent), n + 1) - 1):
            y = _product(y, a, n)
        return y
    # a y' = exponent a' y
    scale = _nonzero(a[0])
    y = [scale**exponent]
    for k in range(1, n + 1):
        terms = ((exponent * j - (k - j)) * a[j] * y[k - j] for j in range(1, k + 1))
        y.append(sp.expand(sp.Add(*terms) / (k * scale)))
    return y


def _nonzero(leading: sp.Expr) -> sp.Expr:
    leading = sp.cancel(leading)
    if leading == 0:
        raise ZeroDivisionError("singular at 0")
    return leading
