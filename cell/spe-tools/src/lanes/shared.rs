//! Members of unions that share memory with a vector or with a wider number.
//!
//! Why by names: so a member's accesses are found wherever a source has them, through pointers,
//! within structures and of headers. The memory keeps the order of the union's first vector, or
//! of its widest number; what has elements of another size is turned at each access.
//!
//! Must stay true: an access is exact or refused. A name that several types have is decided by the
//! compiler, which knows the object's type.

use super::types::{Shape, Types};
use super::unions::value_end;
use crate::text::Text;
use std::collections::{BTreeMap, BTreeSet};

/// The treatment of a member's accesses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Access {
    /// An array of narrower numbers of this type: its index is turned.
    Elements(String),
    /// A vector whose elements have this size: it is turned where it is read or written.
    Vector(usize),
    /// A structure of narrower numbers: each field has another's place.
    Fields(BTreeMap<Vec<u8>, Vec<u8>>),
    /// A field of a structure without a name, and the one that has its place.
    Field(Vec<u8>),
    /// More or less than elements.
    Refused,
}

/// A member that shares its memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Shared {
    pub(super) access: Access,
    /// Bytes of the vector's elements or of the wider number, as C.
    pub(super) width: String,
    /// True where another type has a member of the name.
    pub(super) ambiguous: bool,
    /// For those: the unions with such a member by their types, and their widths. None where the
    /// compiler cannot choose.
    pub(super) unions: Vec<(String, String)>,
}

/// A member of one union.
#[derive(Debug, PartialEq, Eq)]
struct One {
    access: Access,
    width: String,
    union: Option<String>,
}

/// All such members of a source, by their names.
#[derive(Debug, Default)]
pub(super) struct Members {
    all: BTreeMap<Vec<u8>, Vec<One>>,
    others: BTreeSet<Vec<u8>>,
    /// Structures without a name within unions, whose fields are the union's.
    inner: BTreeSet<usize>,
    /// Unions whose list of values would fill another member than the memory's order is of.
    listed: BTreeSet<Vec<u8>>,
    /// Names that methods of C++ use without their object's, and where they are declared.
    bare: BTreeMap<Vec<u8>, (usize, usize)>,
}

/// A member's declaration.
struct Part {
    start: usize,
    end: usize,
    /// Names that it declares.
    names: Vec<usize>,
    shape: Option<Shape>,
    array: bool,
    /// True for a field of bits.
    bits: bool,
    /// A long, which has another size on a host.
    long: bool,
}

/// The order of a union's memory.
struct Order {
    width: usize,
    text: String,
    vector: bool,
    /// True where its size is a long's, which is not known here.
    long: bool,
    union: Option<String>,
}

impl Members {
    /// Those of the user's own files, except unions at the places `exact`.
    pub(super) fn read(text: &Text<'_>, types: &Types, exact: &BTreeSet<usize>) -> Self {
        let mut members = Self::default();
        for place in 0..text.len() {
            let body = matches!(text.at(place), b"union" | b"struct" | b"class");
            let read = exact.contains(&place) || members.inner.contains(&place);
            if body && text.is_users(place) && !read {
                members.read_body(text, types, place);
            }
        }
        members.find_lists(text);
        members
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(super) fn of(&self, name: &[u8]) -> Option<Shared> {
        let all = self.all.get(name)?;
        let first = all.first()?;
        let access = all.iter().all(|one| one.access == first.access);
        let width = all.iter().all(|one| one.width == first.width);
        let ambiguous = !(access && width) || self.others.contains(name);
        let named = all
            .iter()
            .map(|one| Some((one.union.clone()?, one.width.clone())));
        let unions = named.collect::<Option<Vec<_>>>().filter(|_| access);
        Some(Shared {
            access: first.access.clone(),
            width: first.width.clone(),
            ambiguous,
            unions: unions.unwrap_or_default(),
        })
    }

    /// True for a name at `place` that can only be a member without its object.
    pub(super) fn is_bare(&self, text: &Text<'_>, place: usize) -> bool {
        let before = place
            .checked_sub(1)
            .map_or(&b""[..], |before| text.at(before));
        let declared = self.bare.get(text.at(place));
        let outside = declared.is_some_and(|(open, close)| place < *open || place > *close);
        outside && before != b"." && before != b">"
    }

    /// Finds structures with such unions in them, whose lists would fill them as well.
    fn find_lists(&mut self, text: &Text<'_>) {
        for place in (0..text.len()).rev().filter(|place| text.is_users(*place)) {
            if !matches!(text.at(place), b"struct" | b"class") || self.listed.is_empty() {
                continue;
            }
            let open = (place + 1..place + 3).find(|at| text.at(*at) == b"{");
            let close = open.and_then(|open| text.partner(open));
            // A member of the type, or a union of its own; other members may have such names.
            let holds = |open: usize, close: usize| {
                (open..close).any(|at| {
                    let typed = text.is_word(at + 1) || text.at(at - 1) == b"}";
                    typed && self.listed.contains(text.at(at))
                })
            };
            let body = open.and_then(|open| Some((open, close?)));
            if let Some((_, close)) = body.filter(|(open, close)| holds(*open, *close)) {
                self.listed.extend(named(text, place, close));
            }
        }
    }

    /// True for the name of a union that a list of values would fill wrongly.
    pub(super) fn is_listed(&self, name: &[u8]) -> bool {
        self.listed.contains(name)
    }

    /// True for a list of values that has one meaning in every order: of zeros, or of members by
    /// name that keep memory's order, none of them a list.
    pub(super) fn is_plain_list(&self, text: &Text<'_>, open: usize) -> bool {
        let Some(close) = text.partner(open) else {
            return false;
        };
        let none = |at| matches!(text.at(at), b"{" | b"}" | b"," | b"0");
        if (open + 1..close).all(none) {
            return true;
        }
        let mut at = open + 1;
        while at < close {
            let named = text.at(at) == b"." && text.at(at + 2) == b"=";
            let list = text.at(at + 3) == b"{";
            if !named || list || self.of(text.at(at + 1)).is_some() {
                return false;
            }
            at = value_end(text, at + 3) + 1;
        }
        true
    }

    fn read_body(&mut self, text: &Text<'_>, types: &Types, place: usize) {
        let open = (place + 1..place + 3).find(|at| text.at(*at) == b"{");
        let Some((open, close)) = open.and_then(|open| Some((open, text.partner(open)?))) else {
            return;
        };
        let mut parts = parts(text, types, open, close);
        let union = text.at(place) == b"union";
        for part in parts
            .iter_mut()
            .filter(|part| union && part.shape.is_none())
        {
            part.shape = vectors(text, types, part);
            part.array |= part.shape.is_some();
        }
        let order = Order::of(text, place, close, &parts).filter(|_| union);
        let Some(order) = order else {
            self.add_others(text, &parts);
            return;
        };
        // A union without a name within a class.
        let nameless = text.is_plus() && open == place + 1 && text.at(close + 1) == b";";
        for (at, part) in parts.iter().enumerate() {
            let shared = self.read_part(text, types, part, &order);
            if shared && at == 0 {
                self.listed.extend(named(text, place, close));
            }
            if shared && nameless {
                let names = part.names.iter().map(|name| text.at(*name).to_vec());
                self.bare.extend(names.map(|name| (name, (open, close))));
            }
        }
    }

    /// Reads a member of a union; true where its accesses differ from the compiler's.
    fn read_part(&mut self, text: &Text<'_>, types: &Types, part: &Part, order: &Order) -> bool {
        let Some(shape) = part.shape else {
            return self.read_structure(text, types, part, order);
        };
        let name = part.names.first().copied();
        let (Some(name), [_]) = (name, part.names.as_slice()) else {
            let differs = order.vector && shape.width != order.width;
            return self.add_all(text, part, order, differs.then_some(Access::Refused));
        };
        let number = part.array && !shape.vector;
        // Source that asks for the machine's order wants to know that of its memory.
        let asks = !order.vector && types.asks_for_order && shape.width == 1;
        let narrow = shape.width < order.width && !asks;
        let access = if shape.width == order.width {
            None
        } else if number && narrow && covers(text, name, shape.width, order.width) {
            Some(Access::Elements(text.span(part.start, name)))
        } else if shape.vector && !part.array {
            Some(Access::Vector(shape.width))
        } else {
            order.vector.then_some(Access::Refused)
        };
        self.add_all(text, part, order, access)
    }

    /// A structure within a union, by its fields.
    fn read_structure(
        &mut self,
        text: &Text<'_>,
        types: &Types,
        part: &Part,
        order: &Order,
    ) -> bool {
        let Some((open, close)) = body(text, part) else {
            self.add_others(text, std::slice::from_ref(part));
            return false;
        };
        let inner = parts(text, types, open, close);
        let known = inner.iter().filter_map(|field| field.shape);
        let widths = known.map(|shape| shape.width).collect::<BTreeSet<_>>();
        let plain = inner
            .iter()
            .all(|field| field.shape.is_some_and(|shape| !shape.vector) && !field.array);
        let long = order.long || inner.iter().any(|field| field.long);
        let names = inner.iter().flat_map(|field| &field.names);
        let names = names
            .map(|name| text.at(*name).to_vec())
            .collect::<Vec<_>>();
        let width = widths.first().copied().unwrap_or(0);
        let whole = plain && !long && widths.len() == 1 && width < order.width;
        let tiled = whole && names.len() > 1 && (names.len() * width).is_multiple_of(order.width);
        // The compiler here gives the first field of bits the lowest ones, the Cell's the highest.
        let bits = inner.iter().any(|field| field.bits) && !types.asks_for_order;
        let access = if bits {
            Some(Access::Refused)
        } else if tiled {
            let turn = order.width / width - 1;
            let place = |at: usize| names.get(at ^ turn).cloned();
            let all = names.iter().enumerate();
            let pairs = all.filter_map(|(at, name)| Some((name.clone(), place(at)?)));
            Some(Access::Fields(pairs.collect()))
        } else {
            // Numbers of other sizes: in a union of numbers mostly another kind of value.
            let differs = widths.iter().any(|width| *width != order.width);
            (order.vector && differs).then_some(Access::Refused)
        };
        if !part.names.is_empty() {
            return self.add_all(text, part, order, access);
        }
        // Without a name of its own its fields are the union's.
        self.inner.insert(part.start);
        let differs = access.is_some();
        for field in names {
            let one = match &access {
                Some(Access::Fields(all)) => all.get(&field).cloned().map(Access::Field),
                other => other.clone(),
            };
            self.add(field, order, one);
        }
        differs
    }

    fn add_all(
        &mut self,
        text: &Text<'_>,
        part: &Part,
        order: &Order,
        access: Option<Access>,
    ) -> bool {
        for name in &part.names {
            self.add(text.at(*name).to_vec(), order, access.clone());
        }
        access.is_some()
    }

    fn add(&mut self, name: Vec<u8>, order: &Order, access: Option<Access>) {
        let Some(access) = access else {
            self.others.insert(name);
            return;
        };
        let one = One {
            access,
            width: order.text.clone(),
            union: order.union.clone(),
        };
        let known = self.all.entry(name).or_default();
        if !known.contains(&one) {
            known.push(one);
        }
    }

    fn add_others(&mut self, text: &Text<'_>, parts: &[Part]) {
        let names = parts.iter().flat_map(|part| &part.names);
        self.others
            .extend(names.map(|name| text.at(*name).to_vec()));
    }
}

impl Order {
    /// The order of the union's first vector, or of its widest number.
    fn of(text: &Text<'_>, place: usize, close: usize, parts: &[Part]) -> Option<Self> {
        let shaped = || parts.iter().filter_map(|part| Some((part, part.shape?)));
        // A quadword has no elements of its own: it takes others' order.
        let quadword = |part: &Part| (part.start..part.end).any(|at| text.at(at) == b"qword");
        let own = shaped().find(|(part, shape)| shape.vector && !quadword(part));
        let other = || shaped().find(|(_, shape)| !shape.vector);
        let any = shaped().find(|(_, shape)| shape.vector);
        let vector = any.map(|any| own.or_else(other).unwrap_or(any));
        let (width, written, long) = if let Some((_, shape)) = vector {
            (shape.width, shape.width.to_string(), false)
        } else {
            // A long of the SPU's has 4 bytes; where it has 8 the compiler turns more.
            let numbers = shaped().filter(|(part, _)| !part.array && part.names.len() == 1);
            let size = |part: &Part, shape: Shape| if part.long { 8 } else { shape.width };
            let (part, shape) = numbers.reduce(|widest, next| {
                let wider = size(next.0, next.1) > size(widest.0, widest.1);
                if wider { next } else { widest }
            })?;
            let name = part.names.first()?;
            let written = format!("sizeof({})", text.span(part.start, *name));
            (size(part, shape), written, part.long)
        };
        let tag = text.is_word(place + 1).then(|| text.at(place + 1));
        let attribute = text.at(close + 1).starts_with(b"__attribute");
        let typedef = place > 0 && text.at(place - 1) == b"typedef" && !attribute;
        let typedef = typedef && text.is_word(close + 1);
        let name = match (typedef, tag) {
            (true, _) => Some(text.span(close + 1, close + 2)),
            (false, Some(tag)) => Some(format!("union {}", String::from_utf8_lossy(tag))),
            (false, None) => None,
        };
        Some(Self {
            width,
            text: written,
            vector: vector.is_some(),
            long,
            union: name,
        })
    }
}

/// Names by which variables of the type at `place` are declared, its own first ones included.
fn named(text: &Text<'_>, place: usize, close: usize) -> Vec<Vec<u8>> {
    let mut behind = close + 1;
    while text.at(behind).starts_with(b"__attribute") {
        let shut = text.partner(behind + 1).filter(|shut| *shut > behind);
        behind = shut.unwrap_or(behind) + 1;
    }
    let behind = text.is_word(behind).then(|| text.at(behind));
    let tag = text.is_word(place + 1).then(|| text.at(place + 1));
    behind.into_iter().chain(tag).map(<[u8]>::to_vec).collect()
}

/// The members that the braces hold.
fn parts(text: &Text<'_>, types: &Types, open: usize, close: usize) -> Vec<Part> {
    let mut all = Vec::new();
    let mut start = open + 1;
    while start < close {
        let mut end = start;
        let mut names = Vec::new();
        let mut array = false;
        let mut stars = false;
        while end < close && text.at(end) != b";" {
            stars |= text.at(end) == b"*";
            let ends = matches!(text.at(end + 1), b"," | b";" | b"[" | b":");
            if ends && text.is_word(end) && end > start {
                names.push(end);
                array |= text.at(end + 1) == b"[";
            }
            let inner = text.partner(end).filter(|other| *other > end);
            end = inner.unwrap_or(end) + 1;
        }
        let first = names.first().copied().unwrap_or(end);
        let shape = types.shape(text, start, first);
        all.push(Part {
            start,
            end,
            shape: shape.filter(|_| !stars && !names.is_empty()),
            array,
            bits: (start..end).any(|at| text.at(at) == b":"),
            long: (start..first).any(|at| text.at(at) == b"long")
                && shape.is_some_and(|shape| shape.width == 4),
            names,
        });
        start = end + 1;
    }
    all
}

/// The vector that all fields of a structure are, which lies in memory as an array of them.
fn vectors(text: &Text<'_>, types: &Types, part: &Part) -> Option<Shape> {
    let (open, close) = body(text, part).filter(|_| !part.names.is_empty())?;
    let inner = parts(text, types, open, close);
    let first = inner.first()?.shape.filter(|shape| shape.vector)?;
    inner
        .iter()
        .all(|field| field.shape == Some(first))
        .then_some(first)
}

/// The braces of the structure that a member is.
fn body(text: &Text<'_>, part: &Part) -> Option<(usize, usize)> {
    let pair = |open: usize| Some((open, text.partner(open)?));
    let start = part.start;
    if text.at(start) == b"struct" {
        if let Some(open) = (start + 1..start + 3).find(|at| text.at(*at) == b"{") {
            return pair(open);
        }
        let tag = text.at(start + 1);
        let all = (0..text.len()).filter(|at| text.at(*at) == b"struct");
        let named = all.filter(|at| text.at(at + 1) == tag && text.at(at + 2) == b"{");
        return named.map(|at| at + 2).next().and_then(pair);
    }
    // A name of `typedef struct { … } name;`.
    let name = (start..part.end).find(|at| text.is_word(*at))?;
    let mut ends = (0..text.len()).filter(|at| text.at(*at) == b"}");
    let end = ends.find(|at| text.at(at + 1) == text.at(name) && text.at(at + 2) == b";")?;
    let open = text.partner(end)?;
    let structure = (open.saturating_sub(2)..open).any(|at| text.at(at) == b"struct");
    structure.then_some((open, end))
}

/// True where an array of one dimension, by its size, covers whole elements of `whole` bytes.
fn covers(text: &Text<'_>, name: usize, width: usize, whole: usize) -> bool {
    let count = std::str::from_utf8(text.at(name + 2)).unwrap_or_default();
    let count = count.parse::<usize>().unwrap_or(0);
    let one = text.at(name + 3) == b"]" && text.at(name + 4) != b"[";
    one && count > 0 && (count * width).is_multiple_of(whole)
}
