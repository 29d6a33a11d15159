//! Verdicts: the meaning of the offers for each product.

use super::Offer;
use serde::Serialize;

/// State of a product on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// All of it.
    Ready,
    /// A part, or slower.
    Limited,
    /// Nothing of it.
    NotAvailable,
}

impl State {
    /// In words.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Limited => "limited",
            Self::NotAvailable => "not available",
        }
    }
}

/// A product's verdict.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Product {
    /// Its name: `images`, `sockets`, `trees`, `engines`, `cell`.
    pub name: &'static str,
    /// Its state.
    pub state: State,
    /// Parts that do not work, and the missing offer; empty where it is ready.
    pub why: String,
}

/// The verdicts by the offers.
pub(super) fn of(offers: &[Offer]) -> Vec<Product> {
    let has = |name: &str| offers.iter().any(|it| it.name == name && it.there);
    vec![
        images(&has),
        sockets(&has),
        trees(&has),
        engines(&has),
        cell(&has),
    ]
}

fn product(name: &'static str, nothing: Option<&str>, lacks: &[&str]) -> Product {
    let (state, why) = match nothing {
        Some(why) => (State::NotAvailable, why.to_owned()),
        None if lacks.is_empty() => (State::Ready, String::new()),
        None => (State::Limited, lacks.join("; ")),
    };
    Product { name, state, why }
}

fn images(has: &dyn Fn(&str) -> bool) -> Product {
    let mut lacks = Vec::new();
    let (is_root, has_fuse) = (has("system administration"), has("FUSE"));
    match (has_fuse, is_root) {
        (false, _) => lacks.push("mount and attach need FUSE; serve and unpack work"),
        (true, false) if !has("fusermount3") => {
            lacks.push("mount --rootless needs fusermount3, attach needs root; serve works");
        }
        (true, false) => lacks.push("attach and mount of a device need root; --rootless works"),
        (true, true) if !has("loop devices") && !has("ublk") => {
            lacks.push("attach needs loop devices or ublk");
        }
        (true, true) => {}
    }
    product("images", None, &lacks)
}

fn sockets(has: &dyn Fn(&str) -> bool) -> Product {
    let mut lacks = Vec::new();
    let has_tap = has("TUN/TAP") && has("network administration");
    if !has_tap && !has("AF_PACKET") && !has("AF_XDP") {
        lacks.push(
            "net up needs TUN/TAP with network administration, or AF_PACKET; net run --loopback \
             works",
        );
    }
    if !has("cores") {
        lacks.push("the stack shares the one core with its programs");
    }
    product("sockets", None, &lacks)
}

fn trees(has: &dyn Fn(&str) -> bool) -> Product {
    let lacks = match has("AVX2 and FMA") {
        true => None,
        false => Some("portable kernels are slower: no AVX2"),
    };
    product("trees", None, lacks.as_slice())
}

fn engines(has: &dyn Fn(&str) -> bool) -> Product {
    let mut lacks = Vec::new();
    if !has("cores") {
        lacks.push("an engine shares the one core with its callers");
    }
    if !has("locked memory") {
        lacks.push("local stores and shared memory may be paged out");
    }
    product("engines", None, &lacks)
}

fn cell(has: &dyn Fn(&str) -> bool) -> Product {
    let nothing = match (has("x86-64"), has("C compiler")) {
        (false, _) => Some("spe needs an x86-64 processor; the model in virtual time works"),
        (true, false) => Some("spe needs a C compiler; the model in virtual time works"),
        (true, true) => None,
    };
    let lacks = match has("x32 headers") {
        true => None,
        false => Some("SPU programs cannot be compiled: no x32 headers"),
    };
    product("cell", nothing, lacks.as_slice())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdicts(there: &[&'static str]) -> Vec<(State, String)> {
        let offers: Vec<Offer> = there
            .iter()
            .map(|name| Offer {
                name,
                there: true,
                found: String::new(),
                used_for: "",
                cause: None,
                remedy: None,
            })
            .collect();
        of(&offers)
            .into_iter()
            .map(|it| (it.state, it.why))
            .collect()
    }

    #[test]
    fn verdicts_follow_from_the_offers() {
        let [images, sockets, trees, engines, cell] = &verdicts(&[])[..] else {
            panic!("five products");
        };
        assert!(images.1.contains("FUSE"), "{images:?}");
        assert!(sockets.1.contains("--loopback works"), "{sockets:?}");
        assert_eq!(trees.0, State::Limited);
        assert_eq!(engines.0, State::Limited);
        assert_eq!(cell.0, State::NotAvailable);
        let all = verdicts(&[
            "FUSE",
            "system administration",
            "loop devices",
            "AF_PACKET",
            "AVX2 and FMA",
            "cores",
            "locked memory",
            "x86-64",
            "C compiler",
            "x32 headers",
        ]);
        assert!(
            all.iter()
                .all(|(state, why)| *state == State::Ready && why.is_empty())
        );
        // A user without root.
        let of_user = verdicts(&["FUSE", "fusermount3"]);
        assert!(of_user[0].1.contains("--rootless works"), "{of_user:?}");
    }
}
