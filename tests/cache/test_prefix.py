"""KV that is used again: the right one, in full, never written by two, and let go of when there is no room."""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.cache import BLOCK, KVCache, KVSequence, key_places, value_places
from outrider.cache.prefix import PrefixTree
from outrider.models.base import KVShape
from outrider.types import Proposal

SHAPE = KVShape(layers=2, heads=1, head_dim=2)


@dataclass(eq=False)
class Text:
    """A sequence, the tokens it is made of, and those of a step."""

    known: list[int] = field(default_factory=list)
    sequence: KVSequence = field(default_factory=KVSequence)
    tokens: list[int] = field(default_factory=list)
    wanted: bool = True


def fingerprint(tokens):
    """What the KV of the last of these positions is: like a model's, a function of all tokens up to it."""
    return zlib.crc32(bytes(tokens)) & 0x7FFF


def compute(cache, text, tokens, drafted=(), accepted=0):
    """One step: the tokens, and a chain after them of which the first `accepted` are committed."""
    text.tokens = list(tokens)
    start = text.sequence.length
    rows = cache.reserve([text], [Proposal.chain(drafted, "test")])
    path = text.known[:start]
    for token, slot in zip([*tokens, *drafted], rows.slots, strict=True):
        path.append(token)
        cache.keys[key_places(slot)] = cache.values[value_places(slot)] = fingerprint(path)
    cache.commit(text.sequence, start + len(tokens), range(accepted))
    text.known = path[: text.sequence.length]
    cache.remember(text.sequence, text.known)


def check(cache, texts):
    """Every text has its own KV, and the books are in order."""
    for text in texts:
        slots = np.array(text.sequence.slots(range(text.sequence.length)), int)
        keys, values = cache.keys[key_places(slots)], cache.values[value_places(slots)]
        expected = [fingerprint(text.known[: end + 1]) for end in range(len(text.known))]
        assert keys[:, 0, 0, 0].tolist() == expected, "the KV of another text"
        assert all((array == keys[:, :1, :1, :1]).all() for array in (keys, values))
    cache.check({text.sequence: text.known for text in texts})


def write(cache, tokens):
    """A text, computed."""
    text = Text()
    compute(cache, text, tokens)
    return text


def adopt(cache, tokens):
    """A text that begins with what is known of the tokens."""
    text = Text()
    count = cache.adopt(text.sequence, tokens)
    text.known = list(tokens[:count])
    return text


def known(cache, tokens):
    """How many positions of a text the cache knows; it stays as it is."""
    node, place = cache.prefixes.root, 0
    while child := cache.prefixes.after(node, tokens, place):
        node, place = child, place + 1
    return place * BLOCK + cache.prefixes.nearest(node, tokens[place * BLOCK :])[1]


LONG = [n * 7 % 250 for n in range(100)]


def test_full_blocks_are_shared_while_their_writer_lives():
    cache = KVCache(SHAPE, 8)
    first = write(cache, LONG)
    second = adopt(cache, LONG)
    assert second.sequence.length == 3 * BLOCK
    assert second.sequence.blocks == first.sequence.blocks[:3]
    assert cache.pool.used == 4
    check(cache, [first, second])


def test_a_text_that_is_over_is_known_to_its_last_position():
    cache = KVCache(SHAPE, 8)
    cache.release(write(cache, LONG).sequence, LONG)
    assert (cache.pool.used, cache.pool.idle, cache.pool.free) == (0, 4, 8)
    text = adopt(cache, [*LONG, 1, 2])
    assert text.sequence.length == 100
    check(cache, [text])


@pytest.mark.parametrize("common", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 70, 99])
def test_a_text_that_departs_inside_a_block_writes_to_a_copy(common):
    """B34: the bits of both are their own."""
    cache = KVCache(SHAPE, 12)
    first = write(cache, LONG[:96])
    text = adopt(cache, [*LONG[:common], *[251] * (130 - common)])
    assert text.sequence.length == min(common, 96)
    compute(cache, text, [251] * 20)
    check(cache, [first, text])


def test_only_what_is_committed_is_known():
    """Drafts that were computed and rejected leave nothing to be found."""
    cache = KVCache(SHAPE, 8)
    text = write(cache, LONG[:30])
    compute(cache, text, [5], drafted=[6, 7, 8], accepted=1)
    cache.release(text.sequence, text.known)
    assert adopt(cache, [*LONG[:30], 5, 6, 7, 8]).sequence.length == 32


def test_two_that_compute_the_same_end_up_with_one_copy():
    cache = KVCache(SHAPE, 8)
    first, second = write(cache, LONG[:70]), write(cache, LONG[:70])
    assert second.sequence.blocks[:2] == first.sequence.blocks[:2]
    assert cache.pool.used == 4
    check(cache, [first, second])


def test_a_text_catches_up_with_what_another_has_computed_meanwhile():
    """Its own block is given back for the whole one."""
    cache = KVCache(SHAPE, 8)
    behind, ahead = write(cache, LONG[:10]), write(cache, LONG[:70])
    assert cache.adopt(behind.sequence, LONG) == 54
    behind.known = LONG[:64]
    assert behind.sequence.blocks == ahead.sequence.blocks[:2]
    check(cache, [behind, ahead])


def test_nothing_is_adopted_of_less_than_is_computed_already():
    cache = KVCache(SHAPE, 8)
    cache.release(write(cache, LONG[:20]).sequence, LONG[:20])
    text = write(cache, LONG[:25])
    assert cache.adopt(text.sequence, LONG) == 0
    check(cache, [text])


def test_a_text_may_keep_its_kv_to_itself():
    cache = KVCache(SHAPE, 8)
    text = Text()
    text.tokens = LONG
    cache.reserve([text], [Proposal()])
    cache.commit(text.sequence, 100, ())
    cache.remember(text.sequence, ())
    assert adopt(cache, LONG).sequence.length == 0
    cache.release(text.sequence, ())
    assert cache.pool.idle == 0
    assert adopt(cache, LONG).sequence.length == 0


def test_the_same_tokens_after_another_beginning_are_not_the_same():
    cache = KVCache(SHAPE, 8)
    cache.release(write(cache, [1] * 32 + [2] * 32).sequence, [1] * 32 + [2] * 32)
    assert adopt(cache, [2] * 40).sequence.length == 0
    assert adopt(cache, [3] * 32 + [2] * 32).sequence.length == 0


def test_keys_of_one_hash_are_told_apart():
    """Nothing relies on a hash: all keys of this text have the same one."""

    class Same(int):
        def __hash__(self):
            return 1

    cache = KVCache(SHAPE, 8)
    text = [Same(n % 5) for n in range(64)]
    cache.release(write(cache, text).sequence, text)
    assert adopt(cache, [Same(n % 5) for n in range(40)]).sequence.length == 40
    assert adopt(cache, [Same(n % 4) for n in range(40)]).sequence.length == 4


def test_keys_may_be_more_than_tokens():
    """An EAGLE head's KV depends on the next token, too: its keys are pairs."""
    cache = KVCache(SHAPE, 8)
    pairs = list(pairwise(LONG))
    text = Text()
    text.tokens = LONG[:-1]
    cache.reserve([text], [Proposal()])
    cache.commit(text.sequence, 99, ())
    cache.release(text.sequence, pairs)
    other = [*LONG[:50], 251, *LONG[51:]]
    assert cache.adopt(KVSequence(), list(pairwise(other))) == 49


def test_what_was_used_least_recently_is_evicted_first_and_ends_before_beginnings():
    cache = KVCache(SHAPE, 6)
    a, b, c = ([n] * 64 for n in (1, 2, 3))
    for tokens in (a, b, c):
        cache.release(write(cache, tokens).sequence, tokens)
    cache.release(adopt(cache, a).sequence)  # so b is the oldest
    cache.pool.give_back(cache.pool.take(1))
    assert [known(cache, text) for text in (a, b, c)] == [64, 32, 64]
    taken = cache.pool.take(3)
    assert [known(cache, text) for text in (a, b, c)] == [64, 0, 32]
    cache.pool.give_back(taken)
    check(cache, [])


def test_a_held_block_is_never_evicted():
    cache = KVCache(SHAPE, 3)
    cache.release(write(cache, LONG[:96]).sequence, LONG[:96])
    text = adopt(cache, LONG[:64])
    with pytest.raises(RuntimeError, match="2 blocks wanted, 1 of 3 are free"):
        cache.pool.take(2)
    (taken,) = cache.pool.take(1)
    assert taken not in text.sequence.blocks
    assert known(cache, LONG) == 64


def test_the_last_idle_block_may_be_copied_onto_itself():
    """Its content is needed and its place too: no other block is free."""
    cache = KVCache(SHAPE, 1)
    cache.release(write(cache, LONG[:20]).sequence, LONG[:20])
    text = adopt(cache, LONG[:10])
    assert text.sequence.length == 10
    assert cache.pool.free == cache.pool.idle == 0
    check(cache, [text])


def test_without_a_free_block_nothing_is_copied():
    cache = KVCache(SHAPE, 1)
    write(cache, LONG[:BLOCK])
    assert adopt(cache, LONG[:10]).sequence.length == 0


def test_a_shorter_text_that_goes_on_is_kept_once():
    cache = KVCache(SHAPE, 8)
    for end in (10, 20, 20, 15, 40):
        cache.release(write(cache, LONG[:end]).sequence, LONG[:end])
    assert cache.pool.idle == 2
    check(cache, [])


def common(a, b):
    count = 0
    for mine, theirs in zip(a, b, strict=False):
        if mine != theirs:
            break
        count += 1
    return count


def live(moves, blocks, cache_type=KVCache):
    """Texts of two tokens, so that they have much in common, begin, grow, are cut back and end, as the moves say.

    Against a simple model: what is known is a list of texts, of which the longest common beginning is adopted. With
    room for all of them, exactly that; with less, at most that.
    """
    cache = cache_type(SHAPE, blocks)
    over, texts = [], []
    for kind, a, b in moves:
        if kind == 0 and len(texts) < 4:
            numbers = random.Random(a)
            wanted = [0] * (a % 80) + [numbers.randrange(2) for _ in range(b % 40)]
            text = Text()
            count = cache.adopt(text.sequence, wanted)
            text.known = wanted[:count]
            remembered = over + [other.known[: len(other.known) // BLOCK * BLOCK] for other in texts]
            best = max((common(wanted, other) for other in remembered), default=0)
            assert count <= best, "more is adopted than is known"
            if blocks == ROOMY:
                assert count == best, "less is adopted than is known"
            texts.append(text)
        elif kind in (1, 2) and texts:
            text = texts[a % len(texts)]
            numbers = random.Random(b)
            tokens = [numbers.randrange(2) if kind == 2 else 0 for _ in range(1 + b % 40)]
            drafted = [numbers.randrange(2) for _ in range(a % 9)]
            if cache.missing(text.sequence, text.sequence.length + len(tokens) + len(drafted)) <= cache.pool.free:
                compute(cache, text, tokens, drafted, numbers.randint(0, len(drafted)))
        elif kind == 3 and texts:
            text = texts.pop(a % len(texts))
            keep = b % 3 > 0
            full = text.known[: len(text.known) // BLOCK * BLOCK]  # was known all along
            over.append(text.known if keep else full)
            cache.release(text.sequence, text.known if keep else ())
        elif kind == 4 and texts:  # a step that breaks off
            text = texts[a % len(texts)]
            text.tokens = [0] * (1 + b % 40)
            if cache.missing(text.sequence, text.sequence.length + len(text.tokens)) <= cache.pool.free:
                cache.reserve([text], [Proposal()])
            cache.trim(text.sequence)
        elif kind == 5 and cache.pool.free:  # others need room
            cache.pool.give_back(cache.pool.take(1 + a % min(cache.pool.free, 6)))
        check(cache, texts)
    for text in texts:
        cache.release(text.sequence, text.known)
    check(cache, [])
    assert cache.pool.free == blocks, "the idle pool is not the pool at start"


ROOMY = 400
MOVES = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 200), st.integers(0, 200)), max_size=60)


@given(MOVES, st.sampled_from([3, 6, ROOMY]))
def test_every_text_has_its_own_kv_whatever_is_shared(moves, blocks):
    live(moves, blocks)


class NoCopy(KVCache):
    """Shares the block in which a text departs, instead of copying it."""

    def _copy(self, sequence, node, common):
        place = len(sequence.path)
        if place == len(sequence.blocks):
            self.pool.share(node.block)
            sequence.extend([node.block])
            sequence.length = place * BLOCK + common


class OffByOne(KVCache):
    """Files a block under tokens one place further on."""

    def remember(self, sequence, keys):
        super().remember(sequence, keys[1:])


class AnyParent(KVCache):
    """Looks at the tokens of a block alone, not at what comes before it."""

    def __init__(self, shape, blocks):
        super().__init__(shape, blocks)
        tree = self.prefixes

        def after(node, keys, place):
            wanted = tuple(keys[place * BLOCK : (place + 1) * BLOCK])
            return next((other for other in tree if other.keys == wanted and len(wanted) == BLOCK), None)

        tree.after = after


class UncheckedHash(KVCache):
    """Takes a text for known if some hash of its tokens is: here, their sum."""

    def __init__(self, shape, blocks):
        super().__init__(shape, blocks)

        def after(node, keys, place):
            wanted = keys[place * BLOCK : (place + 1) * BLOCK]
            near = (child for child in node.children.values() if len(child.keys) == len(wanted) == BLOCK)
            return next((child for child in near if sum(child.keys) == sum(wanted)), None)

        self.prefixes.after = after


class Uncommitted(KVCache):
    """Lets others know of what is rejected afterwards."""

    def commit(self, sequence, end, path):
        sequence.length = end + len(path)
        self.trim(sequence)
        sequence.length = len(sequence.blocks) * BLOCK


class Leaky(KVCache):
    """Does not let go of what is shared."""

    def release(self, sequence, keys=()):
        del sequence.blocks[: len(sequence.path)]
        sequence.path.clear()
        super().release(sequence, ())


class EvictsHeld(KVCache):
    """Forgets to mark a shared block as held."""

    def __init__(self, shape, blocks):
        super().__init__(shape, blocks)
        self.pool.share = lambda block: None


@pytest.mark.parametrize("fault", [NoCopy, OffByOne, AnyParent, UncheckedHash, Uncommitted, Leaky, EvictsHeld])
def test_planted_faults_are_noticed(fault):
    """Negative control of the property test."""
    numbers = random.Random(1)
    for _ in range(60):
        moves = [tuple(numbers.randint(0, n) for n in (5, 200, 200)) for _ in range(60)]
        blocks = numbers.choice([6, ROOMY])
        live(moves, blocks)
        try:
            live(moves, blocks, fault)
        except (AssertionError, RuntimeError, IndexError):
            return
    pytest.fail("the fault went unnoticed")


@pytest.mark.parametrize("fault", ["keys", "parent", "lost", "behind a part"])
def test_the_check_finds_a_corrupt_tree(fault):
    """Negative control."""
    tree = PrefixTree(2)
    first = tree.add(tree.root, (1, 2), 0)
    second = tree.add(first, (3, 4), 1)
    tree.check()
    match fault:
        case "keys":
            second.keys = (3, 5)
        case "parent":
            second.parent = tree.root
        case "lost":
            tree.add(tree.root, (1, 2), 2)
        case "behind a part":
            tree.add(tree.add(second, (5,), 2), (6, 7), 3)
    with pytest.raises(AssertionError):
        tree.check()


def test_a_block_is_not_forgotten_before_those_after_it():
    tree = PrefixTree(2)
    tree.add(tree.add(tree.root, (1, 2), 0), (3, 4), 1)
    with pytest.raises(AssertionError, match="before those after it"):
        tree.remove(0)
