"""Gradient flow in symbols: variables, how fast each moves, d/dt of an expression, and whether it is conserved.

Variables are plain symbols (also as vectors and matrices of a concrete size), or indexed symbols such as v[k, l], which
stand for a whole family of any size. Sums over such families are never written out: `collect` brings every sum of
products to one normal form, in which equal expressions look equal. Chapters `gradient_flow` and `invariant`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

import sympy
from sympy.concrete.delta import deltasummation
from sympy.core.function import AppliedUndef

__all__ = ["Flow", "collect"]


class Flow:
    """Variables and their time derivatives.

    Parameters
    ----------
    velocities : {variable: its time derivative}. A variable is a Symbol, or an Indexed whose indices are distinct symbols,
        which stand for any index: {z[l]: ...} gives the velocity of z[1], z[j], and of z[l] below a sum.

    Raises
    ------
    TypeError : a variable that is neither; ValueError : no variable, or a family given twice.

    >>> x, y = sympy.symbols("x y")
    >>> rotation = Flow({x: -y, y: x})
    >>> rotation.derivative(x**2), rotation.is_conserved(x**2 + y**2)
    (-2*x*y, True)
    """

    def __init__(self, velocities: Mapping[Any, Any]) -> None:
        self._symbols: dict[sympy.Symbol, sympy.Expr] = {}
        self._families: dict[sympy.IndexedBase, tuple[tuple[Any, ...], sympy.Expr]] = {}
        for variable, velocity in velocities.items():
            if isinstance(variable, sympy.Indexed):
                if len(set(variable.indices)) < len(variable.indices) or any(
                    not isinstance(index, sympy.Symbol) for index in variable.indices
                ):
                    raise TypeError(
                        f"variable {variable} must have distinct symbols as indices, which stand for any index"
                    )
                if variable.base in self._families:
                    raise ValueError(
                        f"the family {variable.base} has two velocities; give one for all its members"
                    )
                self._families[variable.base] = (variable.indices, sympy.sympify(velocity))
            elif isinstance(variable, sympy.Symbol):
                self._symbols[variable] = sympy.sympify(velocity)
            else:
                raise TypeError(
                    f"variable {variable!r} is neither a Symbol nor an Indexed; give one of these"
                )
        if not velocities:
            raise ValueError("velocities is empty; give at least one variable and its time derivative")

    @classmethod
    def descent(cls, loss: Any, *variables: Any) -> Flow:
        """Return the gradient flow of a loss: every variable moves by minus its partial derivative.

        Variables are symbols, indexed symbols, or matrices and nested lists of them.

        >>> w = sympy.Matrix(sympy.symbols("w1:3"))
        >>> Flow.descent(w.dot(w) / 2, w).derivative(w).T
        Matrix([[-w1, -w2]])
        """
        loss = sympy.sympify(loss)
        return cls({variable: -_partial(loss, variable) for variable in _flat(variables)})

    def velocity(self, variable: Any) -> sympy.Expr:
        """Return the time derivative of one variable (0 for anything that is not one)."""
        velocity = self._velocity(variable)
        return collect(velocity) if velocity.has(sympy.Sum) else velocity

    def _velocity(self, variable: Any) -> sympy.Expr:
        if isinstance(variable, sympy.Indexed) and variable.base in self._families:
            indices, velocity = self._families[variable.base]
            return _fresh(velocity).subs(dict(zip(indices, variable.indices, strict=True)), simultaneous=True)
        return self._symbols.get(variable, sympy.S.Zero)

    def derivative(self, expression: Any) -> Any:
        """Return d/dt of an expression (or entry by entry of a matrix) along the flow, simplified.

        >>> i, n = sympy.symbols("i n", integer=True)
        >>> z = sympy.IndexedBase("z")
        >>> Flow({z[i]: -z[i]}).derivative(sympy.Sum(z[i] ** 2, (i, 1, n)))
        -2*Sum(z[i_1]**2, (i_1, 1, n))
        """
        if isinstance(expression, sympy.MatrixBase):
            return expression.applyfunc(self.derivative)
        expression = sympy.sympify(expression)
        nudge = sympy.Dummy("epsilon")
        moved = {
            atom: atom + nudge * self._velocity(atom)
            for atom in expression.atoms(sympy.Symbol, sympy.Indexed)
        }
        change = expression.xreplace({atom: new for atom, new in moved.items() if new != atom})
        rate = change.diff(nudge).subs(nudge, 0)
        if rate.has(sympy.Sum):
            return collect(rate)
        return _over_one_denominator(rate)

    def is_conserved(self, expression: Any) -> bool:
        """Return whether d/dt of the expression (every entry of a matrix) is identically zero.

        True is a proof. False says that the simplified derivative is not 0.
        """
        rate = self.derivative(expression)
        entries = list(rate) if isinstance(rate, sympy.MatrixBase) else [rate]
        return all(entry == 0 for entry in entries)


def collect(expression: Any) -> sympy.Expr:
    """Return an expression with sums in a normal form: expanded, constants before the sums, indices renamed.

    Each product below sums is summed index by index, those first that share factors with the fewest others.

    >>> i, j, n = sympy.symbols("i j n", integer=True)
    >>> x = sympy.IndexedBase("x")
    >>> collect(sympy.Sum(2 * x[i] * x[j], (i, 1, n), (j, 1, n)) - sympy.Sum(x[j], (j, 1, n)) ** 2)
    Sum(x[i_1], (i_1, 1, n))**2
    """
    expression = sympy.expand(_fresh(sympy.sympify(expression)))
    return sympy.Add(*(_normal_product(term) for term in sympy.Add.make_args(expression)))


def _normal_product(term: sympy.Expr) -> sympy.Expr:
    """Merge the sums of a product into one, expand what stands below, and sum again in the normal order."""
    limits, body = _opened(term)
    if not limits:
        return sympy.Mul(*(_settled(factor) for factor in sympy.Mul.make_args(term)))
    product = sympy.expand(body)
    parts = []
    for one in sympy.Add.make_args(product):
        inner_limits, inner = _opened(one)
        if inner_limits:
            # What stood below an inner sum may expand into several products: start over with one sum less deep.
            parts.append(_normal_product(sympy.Sum(inner, *limits, *inner_limits)))
        else:
            parts.append(_eliminate(one, limits))
    return sympy.Add(*parts)


def _opened(term: sympy.Expr) -> tuple[list[Any], sympy.Expr]:
    """Return the limits and the summand of a product, every sum in it (to a positive power) merged into one."""
    limits: list[Any] = []
    body: list[sympy.Expr] = []
    for factor in sympy.Mul.make_args(term):
        base, power = factor.as_base_exp()
        if isinstance(base, sympy.Sum) and power.is_Integer and power > 0:
            for _ in range(int(power)):
                inner = _fresh(base)
                limits += inner.limits
                body.append(inner.function)
        else:
            body.append(factor)
    return limits, sympy.Mul(*body)


def _eliminate(term: sympy.Expr, limits: list[Any]) -> sympy.Expr:
    """Sum one product over all limits, that index first which meets the fewest others."""
    pending = list(limits)
    term = sympy.Mul(*(_settled(factor) for factor in sympy.Mul.make_args(term)))
    while pending:
        bound = {limit[0] for limit in pending}

        def cost(limit: Any, bound: set[Any] = bound, term: sympy.Expr = term) -> tuple[int, list[str]]:
            own, marks = limit[0], {index: sympy.Symbol("other") for index in bound}
            marks[own] = sympy.Symbol("own")
            touching = [f for f in sympy.Mul.make_args(term) if own in f.free_symbols]
            others = set().union(*(f.free_symbols & bound for f in touching))
            # What an index looks like, whatever it and the others are called, decides between equals.
            return len(others), [str(limit[1:]), *sorted(str(f.xreplace(marks)) for f in touching)]

        limit = min(pending, key=cost)
        pending.remove(limit)
        index, low, high = limit
        inside = [f for f in sympy.Mul.make_args(term) if index in f.free_symbols]
        outside = [f for f in sympy.Mul.make_args(term) if index not in f.free_symbols]
        if not inside:
            summed: sympy.Expr = high - low + 1
        else:
            summand = sympy.Mul(*inside)
            depth = 1 + max((_depth(total) for total in summand.atoms(sympy.Sum)), default=0)
            while (name := sympy.Symbol(f"i_{depth}", integer=True)) in term.free_symbols:
                depth += 1
            summed = sympy.Sum(summand.xreplace({index: name}), (name, low, high))
        term = sympy.Mul(*outside, summed)
    return term


def _settled(factor: sympy.Expr) -> sympy.Expr:
    """Bring the sums inside a function or a power to the normal form."""
    if factor.has(sympy.Sum) and isinstance(factor, sympy.Pow | sympy.Function):
        return factor.func(*(collect(argument) for argument in factor.args))
    return factor


def _depth(total: sympy.Sum) -> int:
    return 1 + max((_depth(inner) for inner in total.function.atoms(sympy.Sum)), default=0)


_COUNTER = itertools.count()


def _fresh(expression: sympy.Expr) -> sympy.Expr:
    """Rename every bound index to one that occurs nowhere else."""
    if not expression.has(sympy.Sum):
        return expression
    if isinstance(expression, sympy.Sum):
        names = {limit[0]: sympy.Dummy(f"i{next(_COUNTER)}", integer=True) for limit in expression.limits}
        function = _fresh(expression.function).xreplace(names)
        limits = [tuple(_fresh(part).xreplace(names) for part in limit) for limit in expression.limits]
        return sympy.Sum(function, *limits)
    return expression.func(*(_fresh(argument) for argument in expression.args))


def _partial(expression: sympy.Expr, variable: Any) -> sympy.Expr:
    """Return ∂expression/∂variable, the Kronecker deltas below sums summed away."""
    if not isinstance(variable, sympy.Indexed):
        return expression.diff(variable)
    return collect(_without_deltas(_fresh(expression).diff(variable)))


def _without_deltas(expression: sympy.Expr) -> sympy.Expr:
    if (
        not expression.has(sympy.KroneckerDelta)
        or expression.is_Atom
        or isinstance(expression, sympy.KroneckerDelta)
    ):
        return expression
    if isinstance(expression, sympy.Sum):
        body = sympy.expand(_without_deltas(expression.function))
        for limit in expression.limits:
            body = sympy.Add(
                *(
                    deltasummation(term, limit, no_piecewise=True)
                    if term.has(sympy.KroneckerDelta)
                    else sympy.Sum(term, limit)
                    for term in sympy.Add.make_args(body)
                )
            )
        return body
    return expression.func(*(_without_deltas(argument) for argument in expression.args))


def _over_one_denominator(expression: sympy.Expr) -> sympy.Expr:
    """Return an expression as one fraction, functions and exponentials treated as variables: 0 if it vanishes."""
    kinds = (sympy.exp, AppliedUndef, sympy.Subs, sympy.Derivative)
    names = {atom: sympy.Dummy() for atom in expression.atoms(*kinds)}
    above, below = sympy.fraction(sympy.together(expression.xreplace(names)))
    back = {name: atom for atom, name in names.items()}
    return sympy.factor_terms(sympy.expand(above) / below).xreplace(back)


def _flat(variables: Iterable[Any]) -> list[Any]:
    out: list[Any] = []
    for variable in variables:
        if isinstance(variable, sympy.Basic) and not isinstance(variable, sympy.MatrixBase):
            out.append(variable)
        else:
            out += _flat(variable)
    return out
