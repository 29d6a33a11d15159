//! Levels 4 to 9: computes the price of every encoding of a frame that the finder's matches allow,
//! and takes the cheapest.
//!
//! Why here: an image is packed once and read often. LZO1X prices are whole bytes and depend on the
//! number of literals before a match, so a parse over positions *and* that number beats a parse
//! that only looks a few bytes ahead.
//!
//! Must stay true: prices agree with `emit` (a wrong price costs bytes, never correctness). Work is
//! bounded by the level's depth per position; a match of [`Finder`]'s nice length is taken without
//! a further search, which keeps runs linear. The scratch memory does not grow with the frame: it
//! is parsed in pieces of [`PIECE`] bytes. One engine at a time.
//!
//! Source: shortest path over (position, state), as optimal parsers since Storer and Szymanski
//! (1982) do.
//!
//! Matches: the cost of one grows with its distance, so for every length only the nearest earlier
//! occurrence of the bytes matters; [`Finder`] finds these, nearest first, each longer than the one
//! before. Must stay true: positions are entered in order, each once; nothing is reported beyond
//! [`REACH_FAR`] or before the frame's start; a search examines at most the level's depth of
//! candidates. Source: hash chains, as in Deutsch's deflate (RFC 1951, section 4).

use super::emit::{
    Emitter, LENGTH_FAR, LENGTH_MIDDLE, LENGTH_RUN, LENGTH_SHORT, REACH_AFTER_RUN, REACH_FAR,
    REACH_MIDDLE, REACH_PAIR, REACH_SHORT, common_length, quad,
};
use sidecore_bare::width::ToUsize;

/// Bytes priced in one go.
const PIECE: usize = 32 << 10;
/// The price of a byte. Each match costs one more, so that of equal parses the one with fewer turns
/// wins.
const BYTE: u32 = 16;
/// A price that no encoding reaches.
const NEVER: u32 = u32::MAX / 2;
/// Matches longer than this are tried at full length only.
const EVERY_LENGTH_MAX: usize = 40;

/// The states of a position: the number of literals since the last match, 4 standing for a run.
const STATES: usize = 5;
const RUN: usize = 4;
/// Literals with which a run begins.
const RUN_LITERALS: u32 = 4;

/// The scratch memory of one engine.
pub(super) struct Optimal {
    finder: Finder,
    nodes: Vec<Node>,
    path: Vec<Choice>,
    found: Vec<(usize, usize)>,
}

/// The cheapest ways to arrive at a position.
#[derive(Clone, Copy)]
struct Node {
    price: [u32; STATES],
    /// Literals in the run of state 4.
    run: u32,
    /// The match by which state 0 was reached, and the state before it.
    length: u32,
    distance: u16,
    from: u8,
    /// True when state 4 continues a run, instead of turning three literals into one.
    runs_on: bool,
}

const UNREACHED: Node = Node {
    price: [NEVER; STATES],
    run: 0,
    length: 0,
    distance: 0,
    from: 0,
    runs_on: false,
};

/// A match of the cheapest path: where it starts in the piece.
struct Choice {
    at: usize,
    length: usize,
    distance: usize,
}

impl Optimal {
    pub(super) fn new(level: u8) -> Self {
        let finder = Finder::new(level);
        Self {
            finder,
            nodes: vec![UNREACHED; PIECE + 1],
            path: Vec::with_capacity(PIECE / 2),
            found: Vec::with_capacity(256),
        }
    }

    /// Encodes `raw` without the end marker; returns the position of the literals that are still to
    /// be written.
    pub(super) fn parse(&mut self, raw: &[u8], emitter: &mut Emitter<'_>) -> usize {
        self.finder.reset();
        let (mut anchor, mut start) = (0, 0);
        // A frame starts as if after a match: the length of its first literals also costs one byte.
        let (mut state, mut run) = (0, 0);
        while start < raw.len() {
            let end = raw.len().min(start + PIECE);
            self.nodes[..=end - start].fill(UNREACHED);
            self.nodes[0].price[state] = 0;
            self.nodes[0].run = run;
            self.price(&raw[..end], start);
            (state, run) = self.trace(end - start);
            for choice in self.path.drain(..).rev() {
                let at = start + choice.at;
                emitter.literals(&raw[anchor..at]);
                emitter.copy(choice.length, choice.distance);
                anchor = at + choice.length;
            }
            start = end;
        }
        anchor
    }

    /// Computes the prices of all positions from `start` to the end of `raw`. No match reaches
    /// beyond the end: the next piece starts there.
    fn price(&mut self, raw: &[u8], start: usize) {
        let count = raw.len() - start;
        let mut index = 0;
        while index < count {
            let node = self.nodes[index];
            // Prices flow forward only: when an index is reached, all ways to it are known.
            literal(&node, &mut self.nodes[index + 1]);

            let (state, cheapest) = least(&node.price, 0);
            // A pair is possible only after one to three literals.
            let (few, cheapest_after_few) = least(&node.price[..RUN], 1);
            let mut done = 1;
            self.finder.find(raw, start + index, &mut self.found);
            for &(longest, distance) in &self.found {
                if longest >= self.finder.nice() {
                    let price = cheapest + match_price(longest, distance);
                    relax(&mut self.nodes, index, longest, distance, price, state);
                    done = longest;
                    break;
                }
                let mut length = done + 1;
                while length <= longest {
                    if length == 2 {
                        if distance <= REACH_PAIR {
                            let price = cheapest_after_few + 2 * BYTE + 1;
                            relax(&mut self.nodes, index, 2, distance, price, few);
                        }
                    } else {
                        let price = cheapest + match_price(length, distance);
                        relax(&mut self.nodes, index, length, distance, price, state);
                        if length == 3 && (REACH_SHORT + 1..=REACH_AFTER_RUN).contains(&distance) {
                            let price = node.price[RUN] + 2 * BYTE + 1;
                            relax(&mut self.nodes, index, 3, distance, price, RUN);
                        }
                    }
                    // A shorter match may leave a better one for the next position; beyond this it
                    // hardly ever does.
                    length = if length < EVERY_LENGTH_MAX {
                        length + 1
                    } else {
                        longest.max(length + 1)
                    };
                }
                done = longest;
            }

            let next = if done >= self.finder.nice() {
                index + done
            } else {
                index + 1
            };
            // Entered without a search, which keeps long runs linear.
            for inside in index + 1..next {
                self.finder.enter(raw, start + inside);
            }
            index = next;
        }
    }

    /// Follows the cheapest path back from the end, and stores its matches, last first, in `path`.
    /// Returns the state at the end and the length of its run.
    fn trace(&mut self, end: usize) -> (usize, u32) {
        // The next piece starts in this state; which literals follow is not known yet.
        let (last, _) = least(&self.nodes[end].price, 0);
        let (mut at, mut state) = (end, last);
        while at > 0 {
            let node = &self.nodes[at];
            match state {
                0 => {
                    let (length, distance) = (node.length.to_usize(), usize::from(node.distance));
                    at -= length;
                    self.path.push(Choice {
                        at,
                        length,
                        distance,
                    });
                    state = usize::from(node.from);
                }
                RUN => {
                    at -= 1;
                    state = if node.runs_on { RUN } else { RUN - 1 };
                }
                _ => {
                    at -= 1;
                    state -= 1;
                }
            }
        }
        (last, self.nodes[end].run)
    }
}

/// Reaches the next position by one more literal, from each state.
fn literal(node: &Node, next: &mut Node) {
    for state in 0..RUN - 1 {
        next.price[state + 1] = node.price[state] + BYTE;
    }
    // The fourth literal makes it a run, with an instruction of its own.
    let begins = node.price[RUN - 1] + 2 * BYTE;
    let beyond = node.run.to_usize().checked_sub(LENGTH_RUN);
    // Each byte of a long length counts 255.
    let more = beyond.is_some_and(|beyond| beyond.is_multiple_of(255));
    let goes_on = node.price[RUN] + BYTE + if more { BYTE } else { 0 };
    next.runs_on = goes_on < begins;
    (next.price[RUN], next.run) = if next.runs_on {
        (goes_on, node.run + 1)
    } else {
        (begins, RUN_LITERALS)
    };
}

/// The cheapest state from `first` on, and its price.
fn least(prices: &[u32], first: usize) -> (usize, u32) {
    let mut best = (first, prices[first]);
    for (state, &price) in prices.iter().enumerate().skip(first + 1) {
        if price < best.1 {
            best = (state, price);
        }
    }
    best
}

/// Cost of a match of three or more bytes, independent of what precedes it.
fn match_price(length: usize, distance: usize) -> u32 {
    if length <= LENGTH_SHORT && distance <= REACH_SHORT {
        return 2 * BYTE + 1;
    }
    let free = if distance <= REACH_MIDDLE {
        LENGTH_MIDDLE
    } else {
        LENGTH_FAR
    };
    let more = length.saturating_sub(free).div_ceil(255) as u32;
    (3 + more) * BYTE + 1
}

/// Reaches the position `length` bytes further by a match, if that is cheaper than the known price.
fn relax(
    nodes: &mut [Node],
    index: usize,
    length: usize,
    distance: usize,
    price: u32,
    from: usize,
) {
    let node = &mut nodes[index + length];
    if price < node.price[0] {
        node.price[0] = price;
        node.length = length as u32;
        node.distance = distance as u16;
        node.from = from as u8;
    }
}

/// Number of positions in the chain: the next power of two above [`REACH_FAR`].
const WINDOW: usize = 1 << 16;
const TRIPLE_BITS: u32 = 15;
const QUAD_BITS: u32 = 16;

/// The scratch memory of one engine, about 900 KiB. A table holds positions plus one; 0 means none.
pub(super) struct Finder {
    pairs: Box<[u32]>,
    triples: Box<[u32]>,
    quads: Box<[u32]>,
    chain: Box<[u32]>,
    depth: usize,
    nice: usize,
}

impl Finder {
    pub(super) fn new(level: u8) -> Self {
        // How many earlier places are compared, and the length at which the search ends.
        let (depth, nice) = match level {
            0..=4 => (4, 48),
            5 => (8, 96),
            6 => (16, 128),
            7 => (48, 256),
            8 => (256, 1024),
            _ => (4096, 4096),
        };
        let table = |entries: usize| vec![0; entries].into_boxed_slice();
        Self {
            pairs: table(1 << 16),
            triples: table(1 << TRIPLE_BITS),
            quads: table(1 << QUAD_BITS),
            chain: table(WINDOW),
            depth,
            nice,
        }
    }

    /// Clears the positions of the previous frame.
    pub(super) fn reset(&mut self) {
        // The chain needs no clearing: it is entered through the tables, and each link is older
        // than the one before.
        self.pairs.fill(0);
        self.triples.fill(0);
        self.quads.fill(0);
    }

    /// A match of this length or more is taken at once.
    pub(super) const fn nice(&self) -> usize {
        self.nice
    }

    /// Enters `at` without searching.
    pub(super) fn enter(&mut self, raw: &[u8], at: usize) {
        self.replace(raw, at);
    }

    /// Enters `at`; replaces `found` by pairs of length and distance, both rising. No match
    /// reaches beyond the end of `raw`.
    pub(super) fn find(&mut self, raw: &[u8], at: usize, found: &mut Vec<(usize, usize)>) {
        found.clear();
        let [pair, triple, mut next] = self.replace(raw, at);
        let room = raw.len() - at;
        // Pairs and triples have tables of their own: the chain below links positions by four
        // bytes.
        let mut longest = 1;
        for (candidate, reach) in [(pair, REACH_PAIR), (triple, REACH_MIDDLE)] {
            if let Some(before) = earlier(candidate, at, reach) {
                let length = common_length(raw, before, at);
                if length > longest {
                    longest = length;
                    found.push((length, at - before));
                }
            }
        }
        for _ in 0..self.depth {
            let Some(before) = earlier(next, at, REACH_FAR) else {
                break;
            };
            // Nothing longer can follow, or it would not be worth the search.
            if longest >= room || longest >= self.nice {
                break;
            }
            // Four bytes at the end of a possible longer match: most candidates fail here.
            let last = longest.max(3) - 3;
            if quad(raw, before + last) == quad(raw, at + last) {
                let length = common_length(raw, before, at);
                if length > longest.max(3) {
                    longest = length;
                    found.push((length, at - before));
                }
            }
            // The window is larger than the farthest match: an overwritten link lies out of reach.
            next = self.chain[before & (WINDOW - 1)];
        }
    }

    /// Enters `at` and returns what the three tables held.
    fn replace(&mut self, raw: &[u8], at: usize) -> [u32; 3] {
        let word = quad(raw, at);
        let here = at as u32 + 1;
        let left = raw.len() - at;
        if left < 4 {
            // The next piece starts without these bytes: too few to matter.
            return [0; 3];
        }
        let pair = (word & 0xffff).to_usize();
        let triple = ((word << 8).wrapping_mul(0x9e37_79b1) >> (32 - TRIPLE_BITS)).to_usize();
        let quad = (word.wrapping_mul(0x9e37_79b1) >> (32 - QUAD_BITS)).to_usize();
        let before = [self.pairs[pair], self.triples[triple], self.quads[quad]];
        (self.pairs[pair], self.triples[triple], self.quads[quad]) = (here, here, here);
        self.chain[at & (WINDOW - 1)] = before[2];
        before
    }
}

/// The position in an entry, if it lies before `at` and within `reach`.
fn earlier(entry: u32, at: usize, reach: usize) -> Option<usize> {
    entry
        .to_usize()
        .checked_sub(1)
        .filter(|&before| before < at && at - before <= reach)
}
