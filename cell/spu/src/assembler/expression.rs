//! Expressions and symbols.
//!
//! Must stay true: the depth of an expression and the work of its value are bounded. A symbol's
//! value may be an address in a section, which only the linker knows whole.
//! Source: the manual of the GNU assembler, "Expressions"; its order of operators is not C's.

use super::text::{cut_name, is_name, letter_end, shown, trim};
use std::collections::BTreeMap;

/// A number that may hang on symbols.
#[derive(Debug, Clone)]
pub(super) enum Expression {
    Number(i64),
    Symbol(usize),
    /// A place in a section.
    Here(usize, i64),
    Unary(u8, Box<Expression>),
    Binary(Operator, Box<(Expression, Expression)>),
}

/// Operators between two numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operator {
    Either,
    Both,
    Equal,
    Other,
    Less,
    AtMost,
    Greater,
    AtLeast,
    Add,
    Subtract,
    And,
    Xor,
    Or,
    Multiply,
    Divide,
    Remainder,
    Left,
    Right,
}

impl Operator {
    /// Operators with their text, longer ones first.
    const ALL: &'static [(&'static [u8], Self)] = &[
        (b"||", Self::Either),
        (b"&&", Self::Both),
        (b"==", Self::Equal),
        (b"!=", Self::Other),
        (b"<>", Self::Other),
        (b"<=", Self::AtMost),
        (b">=", Self::AtLeast),
        (b"<<", Self::Left),
        (b">>", Self::Right),
        (b"<", Self::Less),
        (b">", Self::Greater),
        (b"+", Self::Add),
        (b"-", Self::Subtract),
        (b"&", Self::And),
        (b"^", Self::Xor),
        (b"|", Self::Or),
        (b"*", Self::Multiply),
        (b"/", Self::Divide),
        (b"%", Self::Remainder),
    ];

    /// Binds the tighter the greater.
    fn rank(self) -> u8 {
        match self {
            Self::Either => 1,
            Self::Both => 2,
            Self::Equal
            | Self::Other
            | Self::Less
            | Self::AtMost
            | Self::Greater
            | Self::AtLeast => 3,
            Self::Add | Self::Subtract => 4,
            Self::And | Self::Xor | Self::Or => 5,
            Self::Multiply | Self::Divide | Self::Remainder | Self::Left | Self::Right => 6,
        }
    }

    /// The result for two numbers; true is -1, as this assembler has it.
    fn of(self, left: i64, right: i64) -> Result<i64, String> {
        let is = |condition: bool| -i64::from(condition);
        let shift = |of: fn(u64, u32) -> Option<u64>| {
            let count = u32::try_from(right).unwrap_or(u32::MAX);
            of(left.cast_unsigned(), count).map_or(0, u64::cast_signed)
        };
        let by_zero = || "division by zero".to_owned();
        Ok(match self {
            Self::Either => i64::from(left != 0 || right != 0),
            Self::Both => i64::from(left != 0 && right != 0),
            Self::Equal => is(left == right),
            Self::Other => is(left != right),
            Self::Less => is(left < right),
            Self::AtMost => is(left <= right),
            Self::Greater => is(left > right),
            Self::AtLeast => is(left >= right),
            Self::Add => left.wrapping_add(right),
            Self::Subtract => left.wrapping_sub(right),
            Self::And => left & right,
            Self::Xor => left ^ right,
            Self::Or => left | right,
            Self::Multiply => left.wrapping_mul(right),
            Self::Divide if right == 0 => return Err(by_zero()),
            Self::Divide => left.wrapping_div(right),
            Self::Remainder if right == 0 => return Err(by_zero()),
            Self::Remainder => left.wrapping_rem(right),
            Self::Left => shift(u64::checked_shl),
            Self::Right => shift(u64::checked_shr),
        })
    }
}

/// An expression's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Value {
    pub(super) base: Base,
    pub(super) number: i64,
    /// A section whose beginning is subtracted.
    pub(super) minus: Option<usize>,
}

/// The address that a value counts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Base {
    Nothing,
    Section(usize),
    Symbol(usize),
}

impl Value {
    fn plain(number: i64) -> Self {
        Self {
            base: Base::Nothing,
            number,
            minus: None,
        }
    }

    /// The number of a value without an address.
    pub(super) fn known(self) -> Option<i64> {
        (self.base == Base::Nothing && self.minus.is_none()).then_some(self.number)
    }

    /// The difference of two values.
    fn minus(self, other: Self) -> Option<Self> {
        let number = self.number.wrapping_sub(other.number);
        if other.known().is_some() {
            return Some(Self { number, ..self });
        }
        if self.known().is_some() || self.minus.is_some() || other.minus.is_some() {
            return None;
        }
        match other.base {
            base if base == self.base => Some(Self::plain(number)),
            Base::Section(section) => Some(Self {
                number,
                minus: Some(section),
                ..self
            }),
            _ => None,
        }
    }
}

/// Symbols of a source.
#[derive(Debug, Default)]
pub(super) struct Symbols {
    pub(super) all: Vec<Symbol>,
    names: BTreeMap<String, usize>,
    /// Labels that are numbers: times that each was defined.
    labels: BTreeMap<u32, u32>,
    /// Section and offset of the statement.
    pub(super) here: (usize, i64),
}

/// A symbol.
#[derive(Debug, Clone)]
pub(super) struct Symbol {
    pub(super) name: String,
    pub(super) meaning: Meaning,
    pub(super) is_global: bool,
    pub(super) is_weak: bool,
    /// True for `.local`, which a `.comm` may follow.
    pub(super) is_local: bool,
    /// The type as ELF has it.
    pub(super) kind: u8,
    pub(super) bytes: Option<Expression>,
}

/// A symbol's definition.
#[derive(Debug, Clone)]
pub(super) enum Meaning {
    Unknown,
    Place(usize, i64),
    Formula(Expression),
    Common { bytes: u32, align: u32 },
}

/// Numbers and operators of one expression.
const NODES_MAX: usize = 128;
/// Symbols that are defined by one another.
const HOPS_MAX: usize = 20;
/// Numbers and operators of one value, through all symbols.
const STEPS_MAX: usize = 1_000;

impl Symbols {
    /// The symbol of a name, made where it is new.
    pub(super) fn named(&mut self, name: &str) -> usize {
        if let Some(found) = self.names.get(name) {
            return *found;
        }
        let number = self.all.len();
        self.names.insert(name.into(), number);
        self.all.push(Symbol {
            name: name.into(),
            meaning: Meaning::Unknown,
            is_global: false,
            is_weak: false,
            is_local: false,
            kind: 0,
            bytes: None,
        });
        number
    }

    /// True where the name has a definition.
    pub(super) fn is_defined(&self, name: &str) -> bool {
        let found = self.names.get(name).and_then(|found| self.all.get(*found));
        found.is_some_and(|symbol| !matches!(symbol.meaning, Meaning::Unknown))
    }

    /// The symbol of a label that is a number: the last one, the next one, or a new one.
    pub(super) fn label(&mut self, number: u32, which: Label) -> Result<usize, String> {
        let count = self.labels.entry(number).or_default();
        let turn = match which {
            Label::Last if *count == 0 => return Err(format!("there is no label {number} before")),
            Label::Last => *count,
            Label::Next => *count + 1,
            Label::New => {
                *count += 1;
                *count
            }
        };
        // A name that source cannot have.
        Ok(self.named(&format!("{number}\u{1}{turn}")))
    }

    /// The value of an expression. A weak symbol's address is its own, which another object may
    /// replace, except where `firm`.
    pub(super) fn value(&self, of: &Expression, firm: bool) -> Result<Value, String> {
        let mut steps = STEPS_MAX;
        self.value_in(of, firm, &mut steps, HOPS_MAX)
    }

    /// The number of an expression that must be known at once.
    pub(super) fn number(&self, of: &Expression) -> Result<i64, String> {
        let value = self.value(of, true)?;
        value.known().ok_or_else(|| {
            let name = match value.base {
                Base::Symbol(symbol) => self.all.get(symbol).map(|symbol| &symbol.name),
                _ => None,
            };
            match name {
                Some(name) => {
                    let name = shown(name.as_bytes());
                    format!("a number must stand here, and {name} is not known yet")
                }
                None => "a number must stand here, not an address".into(),
            }
        })
    }

    fn value_in(
        &self,
        of: &Expression,
        firm: bool,
        steps: &mut usize,
        hops: usize,
    ) -> Result<Value, String> {
        *steps = steps.checked_sub(1).ok_or("an expression is too long")?;
        match of {
            Expression::Number(number) => Ok(Value::plain(*number)),
            Expression::Here(section, offset) => Ok(Value {
                base: Base::Section(*section),
                number: *offset,
                minus: None,
            }),
            Expression::Symbol(number) => {
                let own = Value {
                    base: Base::Symbol(*number),
                    number: 0,
                    minus: None,
                };
                let Some(symbol) = self.all.get(*number).filter(|found| firm || !found.is_weak)
                else {
                    return Ok(own);
                };
                match &symbol.meaning {
                    Meaning::Place(section, offset) => Ok(Value {
                        base: Base::Section(*section),
                        number: *offset,
                        minus: None,
                    }),
                    Meaning::Formula(formula) => {
                        let hops = hops.checked_sub(1).ok_or_else(|| {
                            format!("{} is defined by itself, or too deeply", symbol.name)
                        })?;
                        self.value_in(formula, firm, steps, hops)
                    }
                    Meaning::Unknown | Meaning::Common { .. } => Ok(own),
                }
            }
            Expression::Unary(sign, of) => {
                let value = self.value_in(of, firm, steps, hops)?;
                let number = value.known().ok_or("an address has no sign")?;
                Ok(Value::plain(match sign {
                    b'-' => number.wrapping_neg(),
                    b'~' => !number,
                    _ => i64::from(number == 0),
                }))
            }
            Expression::Binary(operator, both) => {
                let left = self.value_in(&both.0, firm, steps, hops)?;
                let right = self.value_in(&both.1, firm, steps, hops)?;
                combined(*operator, left, right)
            }
        }
    }
}

/// The value of an operator between two.
fn combined(operator: Operator, left: Value, right: Value) -> Result<Value, String> {
    if let (Some(left), Some(right)) = (left.known(), right.known()) {
        return operator.of(left, right).map(Value::plain);
    }
    let sum = |address: Value, number: i64| Value {
        number: address.number.wrapping_add(number),
        ..address
    };
    let difference = left.minus(right);
    let found = match operator {
        Operator::Add => match (left.known(), right.known()) {
            (_, Some(number)) => Some(sum(left, number)),
            (Some(number), None) => Some(sum(right, number)),
            _ => None,
        },
        Operator::Subtract => difference,
        // Addresses of one section can be compared.
        _ if operator.rank() == 3 => {
            let known = difference.and_then(Value::known);
            match known {
                Some(number) => Some(Value::plain(operator.of(number, 0)?)),
                None => None,
            }
        }
        _ => None,
    };
    found.ok_or_else(|| "an address takes only + and - of numbers here".into())
}

/// Labels that are numbers, as `1b`, `1f` and `1:` name them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Label {
    Last,
    Next,
    New,
}

/// Text from which expressions are read.
#[derive(Debug)]
pub(super) struct Parser<'t, 's> {
    pub(super) rest: &'t [u8],
    pub(super) symbols: &'s mut Symbols,
    nodes: usize,
}

impl<'t, 's> Parser<'t, 's> {
    pub(super) fn new(text: &'t [u8], symbols: &'s mut Symbols) -> Self {
        Self {
            rest: text,
            symbols,
            nodes: 0,
        }
    }

    /// Goes over `text` where it stands next.
    pub(super) fn eat(&mut self, text: &[u8]) -> bool {
        self.rest = self.rest.trim_ascii_start();
        let after = self.rest.strip_prefix(text);
        self.rest = after.unwrap_or(self.rest);
        after.is_some()
    }

    /// Checks that nothing is left.
    pub(super) fn finish(&self) -> Result<(), String> {
        match trim(self.rest) {
            b"" => Ok(()),
            rest => Err(format!("`{}` is left over", shown(rest))),
        }
    }

    /// Reads an expression.
    pub(super) fn expression(&mut self) -> Result<Expression, String> {
        self.nodes = 0;
        self.binary(0)
    }

    fn binary(&mut self, rank: u8) -> Result<Expression, String> {
        let mut left = self.unary()?;
        loop {
            let text = self.rest.trim_ascii_start();
            let mut all = Operator::ALL.iter();
            let Some((sign, operator)) = all.find(|row| text.starts_with(row.0)) else {
                return Ok(left);
            };
            if operator.rank() < rank {
                return Ok(left);
            }
            self.rest = &text[sign.len()..];
            let right = self.binary(operator.rank() + 1)?;
            left = Expression::Binary(*operator, Box::new((left, right)));
        }
    }

    fn unary(&mut self) -> Result<Expression, String> {
        self.nodes += 1;
        if self.nodes > NODES_MAX {
            return Err("an expression is too long".into());
        }
        self.rest = self.rest.trim_ascii_start();
        let text = self.rest;
        match text.first() {
            Some(b'+') => {
                self.rest = &text[1..];
                self.unary()
            }
            Some(sign @ (b'-' | b'~' | b'!')) => {
                self.rest = &text[1..];
                Ok(Expression::Unary(*sign, Box::new(self.unary()?)))
            }
            Some(b'(') => {
                self.rest = &text[1..];
                let inner = self.binary(0)?;
                if !self.eat(b")") {
                    return Err("a parenthesis is not closed".into());
                }
                Ok(inner)
            }
            Some(b'\'') => {
                let end = letter_end(text);
                self.rest = &text[end..];
                let letter = match &text[1..end] {
                    [b'\\', letter, ..] => match letter {
                        b'n' => b'\n',
                        b't' => b'\t',
                        b'r' => b'\r',
                        b'0' => 0,
                        other => *other,
                    },
                    [letter, ..] => *letter,
                    [] => return Err("' without a letter".into()),
                };
                Ok(Expression::Number(letter.into()))
            }
            Some(first) if first.is_ascii_digit() => self.digits(),
            Some(b'$') if text.get(1).is_some_and(u8::is_ascii_digit) => Err(format!(
                "`{}`: a register where a number must stand",
                shown(text)
            )),
            _ => {
                let (name, rest) = cut_name(text).ok_or_else(|| match trim(text) {
                    b"" => "a number or a name is missing".to_owned(),
                    text => format!("`{}` is no number and no name", shown(text)),
                })?;
                self.rest = rest;
                if name == b"." {
                    let (section, offset) = self.symbols.here;
                    return Ok(Expression::Here(section, offset));
                }
                let name = String::from_utf8_lossy(name);
                Ok(Expression::Symbol(self.symbols.named(&name)))
            }
        }
    }

    /// A number, or a label that is one.
    fn digits(&mut self) -> Result<Expression, String> {
        let end = self.rest.iter().position(|byte| !is_name(*byte));
        let (word, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
        self.rest = rest;
        let text = String::from_utf8_lossy(word).to_ascii_lowercase();
        let label = match text.as_bytes().last() {
            Some(b'b') => Some(Label::Last),
            Some(b'f') => Some(Label::Next),
            _ => None,
        };
        if let (Some(label), Ok(number)) = (label, text[..text.len() - 1].parse::<u32>()) {
            return Ok(Expression::Symbol(self.symbols.label(number, label)?));
        }
        let (digits, radix) = match text.as_bytes() {
            [b'0', b'x', ..] => (&text[2..], 16),
            [b'0', b'b', ..] => (&text[2..], 2),
            [b'0', _, ..] => (&text[1..], 8),
            _ => (&text[..], 10),
        };
        let number = u64::from_str_radix(digits, radix);
        let number = number.map_err(|_| format!("`{}` is no number", shown(word)))?;
        Ok(Expression::Number(number.cast_signed()))
    }
}
