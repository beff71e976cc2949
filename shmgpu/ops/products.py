"""Products of vectors, matrices and batches of them under their names, and by letters.

Each is recorded as a product of matrices between moves of axes. Never has a row of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from shmgpu.common.wording import counted
from shmgpu.ops.creation import arange
from shmgpu.ops.elementwise import add, mul
from shmgpu.ops.graph import Node
from shmgpu.ops.indexing import index_select
from shmgpu.ops.linear import matmul
from shmgpu.ops.promotion import int64
from shmgpu.ops.shaping import permute, reshape
from shmgpu.ops.stretching import expand, sum

Shape = tuple[int, ...]


def _axes(name: str, wanted: Sequence[int], *nodes: Node) -> None:
    for node, count in zip(nodes, wanted, strict=True):
        if len(node.spec.shape) != count:
            shapes = " and ".join(str(one.spec.shape) for one in nodes)
            raise ValueError(f"{name}: takes tensors of {list(wanted)} axes, not {shapes}")


def mm(input: Node, mat2: Node) -> Node:
    """The product of two matrices: (n, k) and (k, m) -> (n, m); ValueError for other shapes."""
    _axes("mm", (2, 2), input, mat2)
    return matmul(input, mat2)


def bmm(input: Node, mat2: Node) -> Node:
    """A batch of matrix products: (b, n, k) and (b, k, m) -> (b, n, m).

    Raises:
        ValueError: they are of other shapes.
    """
    _axes("bmm", (3, 3), input, mat2)
    if input.spec.shape[0] != mat2.spec.shape[0]:
        raise ValueError(f"bmm: {input.spec.shape} and {mat2.spec.shape} are not equally many")
    return matmul(input, mat2)


def mv(input: Node, vec: Node) -> Node:
    """A matrix times a vector: (n, k) and (k,) -> (n,); ValueError for other shapes."""
    _axes("mv", (2, 1), input, vec)
    return matmul(input, vec)


def outer(input: Node, vec2: Node) -> Node:
    """Each element of one vector times each of the other: (n,) and (m,) -> (n, m)."""
    _axes("outer", (1, 1), input, vec2)
    return mul(reshape(input, (-1, 1)), reshape(vec2, (1, -1)))


def _plus(name: str, input: Node, product: Node, beta: float, alpha: float) -> Node:
    if alpha != 1:
        product = mul(product, alpha)
    if beta == 0:  # what is NaN there does not count
        return product
    if beta != 1:
        input = mul(input, beta)
    found = add(input, product)
    if found.spec.shape != product.spec.shape:
        raise ValueError(f"{name}: {input.spec.shape} cannot be broadcast to {product.spec.shape}")
    return found


def addmm(input: Node, mat1: Node, mat2: Node, *, beta: float = 1, alpha: float = 1) -> Node:
    """``beta * input + alpha * (mat1 @ mat2)``, the input broadcast to the product's shape."""
    return _plus("addmm", input, mm(mat1, mat2), beta, alpha)


def addmv(input: Node, mat: Node, vec: Node, *, beta: float = 1, alpha: float = 1) -> Node:
    """``beta * input + alpha * (mat @ vec)``, the input broadcast to the product's shape."""
    return _plus("addmv", input, mv(mat, vec), beta, alpha)


def baddbmm(input: Node, batch1: Node, batch2: Node, *, beta: float = 1, alpha: float = 1) -> Node:
    """``beta * input + alpha * bmm(batch1, batch2)``, the input broadcast to that shape."""
    return _plus("baddbmm", input, bmm(batch1, batch2), beta, alpha)


def tensordot(a: Node, b: Node, dims: int | Sequence[Sequence[int]] = 2) -> Node:
    """Products summed over axes of both: the last of ``a`` and the first of ``b``, or those named.

    ``dims`` says how many axes, or has a list of axes for each.

    Raises:
        ValueError: their lengths differ.
    """
    if isinstance(dims, int):
        ours = list(range(len(a.spec.shape) - dims, len(a.spec.shape)))
        theirs = list(range(dims))
    else:
        ours = [axis % len(a.spec.shape) for axis in dims[0]]
        theirs = [axis % len(b.spec.shape) for axis in dims[1]]
    lengths = [a.spec.shape[axis] for axis in ours]
    if lengths != [b.spec.shape[axis] for axis in theirs]:
        raise ValueError(f"tensordot: {a.spec.shape} and {b.spec.shape} differ in axes {dims}")
    rows = [axis for axis in range(len(a.spec.shape)) if axis not in ours]
    columns = [axis for axis in range(len(b.spec.shape)) if axis not in theirs]
    shape = (*[a.spec.shape[axis] for axis in rows], *[b.spec.shape[axis] for axis in columns])
    common = math.prod(lengths)
    left = reshape(permute(a, (*rows, *ours)), (_size(a, rows), common))
    right = reshape(permute(b, (*theirs, *columns)), (common, _size(b, columns)))
    return reshape(matmul(left, right), shape)


def _size(x: Node, axes: Sequence[int]) -> int:
    return math.prod(x.spec.shape[axis] for axis in axes)


# ---- by letters ----------------------------------------------------------------------------------


def einsum(equation: str, *operands: Node) -> Node:
    """A sum of products over axes named by letters: ``"bij,bjk->bik"`` is :func:`bmm`.

    Args:
        equation: a letter for each axis of each tensor, ``...`` for axes that are broadcast to each
            other, and after ``->`` those of the result; without that, those that occur once, in
        alphabetical order.
        operands: the tensors, or one sequence of them.

    Raises:
        ValueError: the letters do not match the axes.
    """
    is_listed = len(operands) == 1 and isinstance(operands[0], list)
    nodes = list(operands[0]) if is_listed else [*operands]  # type: ignore[call-overload]
    inputs, out = _terms(equation.replace(" ", ""), nodes)
    lengths: dict[str, int] = {}
    for term, node in zip(inputs, nodes, strict=True):
        for letter, length in zip(term, node.spec.shape, strict=True):
            known = lengths.setdefault(letter, length)
            if known != length and 1 not in (known, length):
                raise ValueError(f"einsum: {letter!r} is {known} and {length} in {equation!r}")
            lengths[letter] = max(known, length)
    parts = [_diagonals(node, term) for node, term in zip(nodes, inputs, strict=True)]
    found, letters = parts[0]
    for number, (node, term) in enumerate(parts[1:], 1):
        later = set(out).union(*[term for _, term in parts[number + 1 :]])
        found, letters = _two(found, letters, node, term, later, lengths)
    gone = [at for at, letter in enumerate(letters) if letter not in out]
    if gone:
        found = sum(found, tuple(gone))
        letters = "".join(one for one in letters if one in out)
    return permute(found, tuple(letters.index(one) for one in out)) if letters != out else found


def _terms(equation: str, nodes: list[Node]) -> tuple[list[str], str]:
    """The letters of each tensor and of the result; those that ``...`` stands for are digits."""
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if len(terms) != len(nodes):
        named = counted(len(terms), "tensor")
        raise ValueError(f"einsum: {equation!r} is of {named}, not of {len(nodes)}")
    most = 0
    for at, (term, node) in enumerate(zip(terms, nodes, strict=True)):
        free = len(node.spec.shape) - len(term.replace("...", ""))
        if free < 0 or (free and "..." not in term):
            raise ValueError(f"einsum: {term!r} does not fit the axes of {node.spec.shape}")
        terms[at] = term.replace("...", "".join(chr(48 + free - 1 - n) for n in range(free)), 1)
        most = max(most, free)
    dots = "".join(chr(48 + most - 1 - n) for n in range(most))
    if arrow:
        out = right.replace("...", dots)
    else:
        every = "".join(terms)
        out = dots + "".join(sorted(c for c in set(every) if every.count(c) == 1 and c.isalpha()))
    strange = [c for c in out if c not in "".join(terms)]
    if strange or len(set(out)) < len(out) or not "".join([*terms, out, "a"]).isalnum():
        raise ValueError(f"einsum: {equation!r} has letters that say nothing: correct it")
    return terms, out


def _diagonals(node: Node, term: str) -> tuple[Node, str]:
    """A letter that one tensor has twice means its diagonal."""
    while len(set(term)) < len(term):
        letter = next(c for c in term if term.count(c) > 1)
        first, second = [at for at, c in enumerate(term) if c == letter][:2]
        length = node.spec.shape[first]
        rest = [at for at in range(len(term)) if at not in (first, second)]
        node = permute(node, (first, second, *rest))
        shape = tuple(node.spec.shape[2:])
        places = arange(0, length + 1, length, int64)
        node = index_select(reshape(node, (length * length, *shape)), 0, places)
        term = letter + "".join(term[at] for at in rest)
    return node, term


def _two(
    a: Node, mine: str, b: Node, theirs: str, later: set[str], lengths: dict[str, int]
) -> tuple[Node, str]:
    """Two of them as one product of matrices: letters of both that stay are a batch."""
    a, mine = _summed(a, mine, theirs, later)
    b, theirs = _summed(b, theirs, mine, later)
    both = [c for c in mine if c in theirs]
    batch = [c for c in both if c in later]
    common = [c for c in both if c not in later]
    rows = [c for c in mine if c not in theirs]
    columns = [c for c in theirs if c not in mine]
    if any(a.spec.shape[mine.index(c)] != b.spec.shape[theirs.index(c)] for c in common):
        a, b = _stretched(a, mine, common, lengths), _stretched(b, theirs, common, lengths)

    def size(letters: list[str]) -> int:
        return math.prod(lengths[c] for c in letters)

    left = permute(a, tuple(mine.index(c) for c in (*batch, *rows, *common)))
    right = permute(b, tuple(theirs.index(c) for c in (*batch, *common, *columns)))
    lead = len(batch)
    left = reshape(left, (*left.spec.shape[:lead], size(rows), size(common)))
    right = reshape(right, (*right.spec.shape[:lead], size(common), size(columns)))
    found = matmul(left, right)
    letters = "".join((*batch, *rows, *columns))
    return reshape(found, tuple(lengths[c] for c in letters)), letters


def _summed(x: Node, letters: str, others: str, later: set[str]) -> tuple[Node, str]:
    """Over what nobody else asks for."""
    alone = [at for at, c in enumerate(letters) if c not in others and c not in later]
    if alone:
        x = sum(x, tuple(alone))
    return x, "".join(c for at, c in enumerate(letters) if at not in alone)


def _stretched(x: Node, letters: str, common: list[str], lengths: dict[str, int]) -> Node:
    return expand(x, tuple(lengths[c] if c in common else -1 for c in letters))
