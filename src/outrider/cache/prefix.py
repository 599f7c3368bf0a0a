"""Which blocks hold the keys and values of which beginnings of texts: a tree in which a path is a text.

    root - [0 .. 31] - [32 .. 63] - [64 .. 75]     a text of 76 positions
                     \\ [32 .. 63]                  another one with the same first 32

Positions are known by what their KV depends on: `Key`s. For a target that is the token; for a head whose KV depends on
the next token as well, a pair. Keys are compared, never only their hashes; and as a block hangs below all that comes
before it, the same tokens after another beginning are another node.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

Key = Hashable


class Node:
    """A block, and the keys of the positions in it: all of a block's, or fewer in a leaf."""

    __slots__ = ("block", "children", "keys", "parent")

    def __init__(self, parent: Node | None, keys: tuple[Key, ...], block: int) -> None:
        self.parent = parent
        self.keys = keys
        self.block = block
        self.children: dict[tuple[Key, ...], Node] = {}


class PrefixTree:
    """Nodes by what comes before them, and by their blocks of `size` positions.

    root  stands for the empty beginning, and has no block.
    """

    def __init__(self, size: int) -> None:
        self.root = Node(None, (), -1)
        self._size = size
        self._nodes: dict[int, Node] = {}

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[Node]:
        return iter(self._nodes.values())

    def after(self, node: Node, keys: Sequence[Key], place: int) -> Node | None:
        """The child of `node` that holds the whole block number `place` of these keys; None if it is not known."""
        wanted = tuple(keys[place * self._size : (place + 1) * self._size])
        return node.children.get(wanted) if len(wanted) == self._size else None

    def nearest(self, node: Node, keys: Sequence[Key]) -> tuple[Node | None, int]:
        """The child of `node` that starts with most of `keys`, and with how many of them; None where none does."""
        best, most = None, 0
        for child in node.children.values():
            if (common := _common(child.keys, keys)) > most:
                best, most = child, common
                if most == len(keys):
                    break
        return best, most

    def add(self, parent: Node, keys: tuple[Key, ...], block: int) -> Node:
        """A new child: the block holds the KV of these keys after those of `parent` and its ancestors."""
        node = Node(parent, keys, block)
        parent.children[keys] = self._nodes[block] = node
        return node

    def remove(self, block: int) -> None:
        """Forget a block that is a leaf."""
        node = self._nodes.pop(block)
        assert node.parent is not None
        assert not node.children, "a block is forgotten before those after it"
        del node.parent.children[node.keys]

    def check(self) -> None:
        """Assert that the nodes are one tree, each under its own keys and block."""
        reached, open_ = 0, [self.root]
        while open_:
            node = open_.pop()
            for keys, child in node.children.items():
                assert 0 < len(keys) <= self._size, "a node has no keys, or more than a block"
                assert child.keys == keys, "a node is filed under keys that are not its own"
                assert len(keys) == self._size or not child.children, "something follows a block that is not full"
                assert child.parent is node, "a node is filed under a parent that is not its own"
                assert self._nodes.get(child.block) is child, "a node is not known by its block"
                reached += 1
                open_.append(child)
        assert reached == len(self._nodes), "a block is known, but not in the tree"


def _common(a: Sequence[Key], b: Sequence[Key]) -> int:
    """How many first items two sequences have in common."""
    for place, (mine, theirs) in enumerate(zip(a, b, strict=False)):
        if mine != theirs:
            return place
    return min(len(a), len(b))
