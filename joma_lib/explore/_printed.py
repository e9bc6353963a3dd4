"""Model scripts: a file of JavaScript whose marks /*name*/ are replaced by printed SymPy expressions."""

from __future__ import annotations

from importlib import resources

import sympy

__all__ = ["model_script"]

_FUNCTIONS = {"erf": "erf", "erfinv": "erfinv"}


def model_script(file: str, **expressions: sympy.Expr) -> str:
    """Return a model script of this package with its expressions printed into it.

    Raises
    ------
    ValueError : the script has no such mark, or an expression holds a function that JavaScript does not know.

    >>> "Math.exp" in model_script("sparse.js", rate=sympy.exp(sympy.Symbol("s")), weight=sympy.Integer(1))
    True
    """
    script = (resources.files(__package__) / file).read_text(encoding="utf-8")
    for name, expression in expressions.items():
        mark = f"/*{name}*/"
        try:
            printed = sympy.jscode(expression, user_functions=_FUNCTIONS)
        except NotImplementedError:
            printed = "//"
        if mark not in script:
            raise ValueError(f"{file} has no mark {mark}; add it where the expression belongs")
        if "//" in printed:  # older versions of SymPy print a comment instead of raising
            raise ValueError(f"{expression} cannot be printed as JavaScript; add its function to runtime.js")
        script = script.replace(mark, printed)
    return script
