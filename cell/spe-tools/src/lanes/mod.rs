//! Lane order: casts between vectors whose elements differ in size give the bits that an SPU's
//! register has.
//!
//! Why here: on the SPU byte 0 of a register is the most significant one of element 0; here bytes
//! within an element have this machine's order. A cast that moves every byte to its place on the
//! SPU makes all later operations exact, since the intrinsics count bytes by the element's size.
//! The compiler decides the type of a cast's operand, in the macros of `sidecore_lane_macros.h`
//! that this pass writes: where sizes agree, nothing is done.
//!
//! Must stay true: source of system headers, the kit's among them, is not touched, and lines keep
//! their numbers; memory has the element size that its declaration says.

mod constant;
pub(crate) mod operand;
mod pass;
pub(crate) mod types;
mod unions;

/// The requested treatment of lane order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Lanes {
    /// In source with vectors of several element sizes. A vector of bytes that is cast straight
    /// from memory to floats, or from floats into memory, is memory alone and stays as it is.
    #[default]
    Auto,
    /// Everywhere, without exceptions.
    Exact,
    /// Nowhere.
    Off,
}

impl Lanes {
    /// The treatment of a name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        match name {
            "auto" => Some(Self::Auto),
            "exact" => Some(Self::Exact),
            "off" => Some(Self::Off),
            _ => None,
        }
    }

    /// The name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Exact => "exact",
            Self::Off => "off",
        }
    }
}

/// Source with exact lanes.
#[derive(Debug)]
pub(crate) struct Rewritten {
    pub(crate) source: Vec<u8>,
    /// True where its macros are to be defined.
    pub(crate) exact: bool,
    /// Lines that say where it is not exact.
    pub(crate) warnings: Vec<String>,
}

/// The source with exact lanes; nothing where it needs no change. Initializers that the compiler
/// must evaluate are numbers already, with every treatment: it takes no casts of vectors there.
/// `converts` says that casts between element sizes are known to be there.
pub(crate) fn rewrite(source: &[u8], lanes: Lanes, converts: bool) -> Option<Rewritten> {
    if !source.windows(4).any(|part| part == b"vec_") {
        return None;
    }
    let text = crate::text::Text::new(source);
    let mut types = types::Types::read(&text);
    let mut unions = unions::Accesses::default();
    if lanes != Lanes::Off {
        unions = unions::accesses(&text, &types);
    }
    types.find_shared(&text, &unions.exact);
    // With elements of one size nothing is to be turned.
    let several = converts
        || types.widths.len() > 1
        || !types.shared.is_empty()
        || casts_results(&text, &types);
    let unaligned =
        several || pass::looks_at_addresses(&text) || pass::casts_pointers(&text, &types);
    let lanes = if lanes == Lanes::Auto && !unaligned {
        Lanes::Off
    } else {
        lanes
    };
    let mut pass = pass::Pass::new(&text, &types, lanes, unions);
    pass.run();
    let (edits, warnings) = pass.finish();
    // Quadwords of intrinsics alone have nothing to rewrite, but macros that differ.
    let quadwords = lanes == Lanes::Auto && several;
    if edits.is_empty() && lanes != Lanes::Exact && !quadwords {
        return None;
    }
    Some(Rewritten {
        source: edits.apply(source),
        exact: lanes != Lanes::Off,
        warnings,
    })
}

/// True where the user's source casts an intrinsic's result, whose elements may have a size that
/// the source has no name for.
fn casts_results(text: &crate::text::Text<'_>, types: &types::Types) -> bool {
    (0..text.len()).any(|place| {
        let cast = text.at(place) == b"(" && text.at(place + 2) == b")";
        if !cast || !text.is_users(place) || types.vector(text.at(place + 1)).is_none() {
            return false;
        }
        let operand = (place + 3..text.len()).find(|at| text.at(*at) != b"(");
        let operand = operand.map_or(&b""[..], |at| text.at(at));
        [&b"spu_"[..], b"vec_", b"si_"]
            .iter()
            .any(|start| operand.starts_with(start))
    })
}

#[cfg(test)]
mod tests;
