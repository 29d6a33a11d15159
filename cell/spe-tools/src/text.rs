//! Source as passes read it: pieces without blanks, and where each stands.
//!
//! Must stay true: places are indices of pieces that the compiler sees; a place of a system's
//! header is never the user's.

use crate::tokens::{Kind, Token, tokens};

/// Preprocessed source in pieces.
pub(crate) struct Text<'a> {
    source: &'a [u8],
    pieces: Vec<Token>,
    places: Vec<Place>,
    /// Partners of brackets; a bracket without one has its own place.
    partners: Vec<usize>,
}

/// Place of a piece in the source.
#[derive(Debug, Clone, Copy)]
struct Place {
    file: usize,
    line: u32,
    user: bool,
    constant: bool,
}

impl<'a> Text<'a> {
    pub(crate) fn new(source: &'a [u8]) -> Self {
        let mut text = Self {
            source,
            pieces: Vec::new(),
            places: Vec::new(),
            partners: Vec::new(),
        };
        let mut place = Place {
            file: 0,
            line: 1,
            user: true,
            constant: false,
        };
        for token in tokens(source) {
            let bytes = token.text(source);
            if token.kind == Kind::Blank {
                if let Some(marker) = Marker::read(bytes) {
                    place.line = marker.line;
                    place.user = !marker.system;
                    // The marker's place stands for the name, which is read only for a message.
                    place.file = token.start;
                } else {
                    let ends = bytes.iter().filter(|byte| **byte == b'\n').count();
                    place.line += u32::try_from(ends).unwrap_or(0);
                }
            } else {
                text.pieces.push(token);
                text.places.push(place);
            }
        }
        text.find_partners();
        text.find_constants();
        text
    }

    /// Number of pieces.
    pub(crate) fn len(&self) -> usize {
        self.pieces.len()
    }

    /// The bytes of a piece; nothing behind the last.
    pub(crate) fn at(&self, place: usize) -> &'a [u8] {
        let source = self.source;
        self.pieces
            .get(place)
            .map_or(&[][..], |piece| piece.text(source))
    }

    /// True for C++: the kit's headers have templates there.
    pub(crate) fn is_plus(&self) -> bool {
        (0..self.len()).any(|place| self.at(place) == b"template")
    }

    pub(crate) fn is_word(&self, place: usize) -> bool {
        self.kind(place) == Some(Kind::Word)
    }

    pub(crate) fn kind(&self, place: usize) -> Option<Kind> {
        self.pieces.get(place).map(|piece| piece.kind)
    }

    /// The bracket that closes or opens the one at `place`.
    pub(crate) fn partner(&self, place: usize) -> Option<usize> {
        self.partners
            .get(place)
            .copied()
            .filter(|other| *other != place)
    }

    /// First byte of a piece in the source.
    pub(crate) fn start(&self, place: usize) -> usize {
        self.pieces
            .get(place)
            .map_or(self.source.len(), |piece| piece.start)
    }

    /// The byte behind a piece.
    pub(crate) fn end(&self, place: usize) -> usize {
        self.pieces
            .get(place)
            .map_or(self.source.len(), |piece| piece.end)
    }

    /// The byte that each line of the source begins at.
    pub(crate) fn line_starts(&self) -> Vec<usize> {
        let bytes = self.source.iter().enumerate();
        let ends = bytes.filter(|(_, byte)| **byte == b'\n');
        std::iter::once(0)
            .chain(ends.map(|(at, _)| at + 1))
            .collect()
    }

    /// The piece at a byte of the source, or the first one behind it.
    pub(crate) fn place_of(&self, byte: usize) -> usize {
        self.pieces.partition_point(|piece| piece.end <= byte)
    }

    /// Source from the piece `from` to the one before `to`.
    pub(crate) fn span(&self, from: usize, to: usize) -> String {
        let bytes = &self.source[self.start(from)..self.end(to.saturating_sub(1))];
        // A marker within would end the macro's line.
        let lines = bytes.split(|byte| *byte == b'\n');
        let kept = lines.filter(|line| !line.starts_with(b"# "));
        String::from_utf8_lossy(&kept.collect::<Vec<_>>().join(&b' ')).into_owned()
    }

    /// True for a piece of the user's own files.
    pub(crate) fn is_users(&self, place: usize) -> bool {
        self.places.get(place).is_some_and(|place| place.user)
    }

    /// True within an initializer that the compiler must evaluate.
    pub(crate) fn is_constant(&self, place: usize) -> bool {
        self.places.get(place).is_some_and(|place| place.constant)
    }

    /// File and line of a piece.
    pub(crate) fn position(&self, place: usize) -> (String, u32) {
        let Some(found) = self.places.get(place) else {
            return (String::new(), 0);
        };
        let line = self.source[found.file..]
            .split(|byte| *byte == b'\n')
            .next();
        let name = line.and_then(Marker::read).map(|marker| marker.name);
        (name.unwrap_or_default(), found.line)
    }

    fn find_partners(&mut self) {
        self.partners = (0..self.pieces.len()).collect();
        let mut open: Vec<usize> = Vec::new();
        for place in 0..self.pieces.len() {
            let wanted = match self.at(place) {
                b"(" | b"[" | b"{" => {
                    open.push(place);
                    continue;
                }
                // A bracket that closes another kind than the innermost has no partner: the
                // compiler refuses such source, which need not stop the passes.
                b")" => b"(",
                b"]" => b"[",
                b"}" => b"{",
                _ => continue,
            };
            if let Some(start) = open.pop_if(|start| self.at(*start) == wanted) {
                self.partners[start] = place;
                self.partners[place] = start;
            }
        }
    }

    /// True for a `=` of an operator's name, such as `operator =` and `operator <<=`.
    fn is_name(&self, place: usize) -> bool {
        (1..=3).any(|back| {
            place
                .checked_sub(back)
                .is_some_and(|word| self.at(word) == b"operator")
        })
    }

    /// Marks initializers of the file's scope and of statics.
    fn find_constants(&mut self) {
        let mut place = 0;
        let mut functions_end = 0;
        let mut fixed = false;
        while place < self.pieces.len() {
            let outside = place >= functions_end;
            match self.at(place) {
                // The body of a function; others are types' and namespaces', in which declarations
                // go on.
                b"{" if outside && self.at(place.wrapping_sub(1)) != b"=" => {
                    let body = matches!(
                        self.at(place.wrapping_sub(1)),
                        b")" | b";" | b"const" | b"override"
                    );
                    fixed = false;
                    if body {
                        functions_end = self.partner(place).unwrap_or(place);
                    }
                }
                b"static" => fixed = true,
                b";" | b"{" | b"}" => fixed = false,
                // `==` and `<=` stand within expressions; those of the file's scope are within
                // initializers that were marked already.
                b"=" if (outside || fixed)
                    && self.at(place + 1) != b"="
                    && !self.is_name(place) =>
                {
                    let mut end = place + 1;
                    while end < self.len() && !matches!(self.at(end), b";" | b"," | b")" | b"}") {
                        end = self
                            .partner(end)
                            .filter(|other| *other > end)
                            .unwrap_or(end)
                            + 1;
                    }
                    for inside in &mut self.places[place + 1..end.min(self.pieces.len())] {
                        inside.constant = true;
                    }
                    place = end.max(place + 1);
                    continue;
                }
                _ => {}
            }
            place += 1;
        }
    }
}

/// A line that names the file and line of the following text.
struct Marker {
    line: u32,
    name: String,
    system: bool,
}

impl Marker {
    fn read(line: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(line).ok()?.strip_prefix("# ")?;
        let (number, rest) = text.split_once(' ')?;
        let mut parts = rest.split('"');
        let name = parts.nth(1)?.to_owned();
        let flags = parts.next().unwrap_or_default();
        Some(Self {
            line: number.parse().ok()?,
            name,
            // 1 and 2 say that a file begins or goes on.
            system: flags.split_whitespace().any(|flag| flag == "3"),
        })
    }
}

/// The source with places that are its own: no markers, and one column for each byte.
pub(crate) fn flat(source: &[u8]) -> Vec<u8> {
    let mut flat = Vec::with_capacity(source.len());
    for line in source.split_inclusive(|byte| *byte == b'\n') {
        let marker = line.starts_with(b"# ") && line.get(2).is_some_and(u8::is_ascii_digit);
        if marker {
            flat.push(b'\n');
            continue;
        }
        flat.extend(line.iter().map(|byte| match byte {
            b'\t' => b' ',
            byte if byte.is_ascii() => *byte,
            _ => b'x',
        }));
    }
    flat
}

/// Changes in any order.
#[derive(Debug, Default)]
pub(crate) struct Edits {
    /// Start, end, new text.
    all: Vec<(usize, usize, String)>,
}

impl Edits {
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Puts `new` in the place of the bytes from `start` to `end`.
    pub(crate) fn replace(&mut self, start: usize, end: usize, new: impl Into<String>) {
        self.all.push((start, end, new.into()));
    }

    /// The source with the changes; line ends that a change covers are kept behind its text.
    pub(crate) fn apply(mut self, source: &[u8]) -> Vec<u8> {
        // Stable: edits at one place keep the order in which they were added.
        self.all.sort_by_key(|(start, end, _)| (*start, *end));
        let mut output = Vec::with_capacity(source.len() + source.len() / 8);
        let mut copied = 0;
        for (start, end, new) in &self.all {
            if *start < copied {
                continue;
            }
            output.extend_from_slice(&source[copied..*start]);
            output.extend_from_slice(new.as_bytes());
            output.extend(source[*start..*end].iter().filter(|byte| **byte == b'\n'));
            copied = *end;
        }
        output.extend_from_slice(&source[copied..]);
        output
    }
}
