//! A script as the parser leaves it: settings, then events in order.

use super::packet::Packet;
use super::pieces::Cut;
use super::settings::Settings;

/// A whole script.
#[derive(Debug, Clone, PartialEq)]
pub struct Script {
    /// From its head.
    pub settings: Settings,
    /// In order.
    pub(crate) events: Vec<Event>,
}

/// One line, or one block of assertions.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Event {
    /// Counted from 1.
    pub(crate) line: usize,
    pub(crate) text: String,
    pub(crate) when: When,
    pub(crate) action: Action,
}

/// Reference point of a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Base {
    /// The script's begin.
    Begin,
    /// The event before.
    Before,
    /// Nothing: any time is right.
    Any,
}

/// Extent of a time: a point, a range, or any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Span {
    /// It is one moment.
    Point,
    /// Anywhere up to this much after the event's time, in nanoseconds.
    Until(u64),
    /// A call that waits, and returns this much after it began.
    Blocks(u64),
}

/// When something happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct When {
    pub(crate) base: Base,
    /// After its base, in nanoseconds.
    pub(crate) at_ns: u64,
    pub(crate) span: Span,
}

/// Action of a step.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Action {
    /// The peer sends it, whole or in fragments.
    Inject(Flow, Packet, Option<Cut>),
    /// The stack sends it, whole or in fragments.
    Expect(Flow, Packet, Option<Cut>),
    /// The application calls.
    Call(Call),
    /// Conditions on the session's state.
    Assert(Vec<Check>),
}

/// Which pair of ends a packet travels between; the first is 1.
pub(crate) type Flow = usize;

/// A call, and its expected result.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Call {
    pub(crate) name: String,
    pub(crate) arguments: Vec<Value>,
    /// None where any result is right (`...`).
    pub(crate) result: Option<i64>,
    /// With `-1`, the error's name.
    pub(crate) error: Option<String>,
}

/// An argument.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    /// `...`: the usual value here.
    Usual,
    /// A number, or names of numbers joined by `|`.
    Number(i64),
    /// In quotes.
    Text(String),
    /// In brackets.
    List(Vec<Value>),
    /// In braces.
    Fields(Vec<(String, Value)>),
}

/// A comparison.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Check {
    pub(crate) left: Term,
    pub(crate) relation: Relation,
    pub(crate) right: Term,
}

/// Comparison operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Relation {
    Equal,
    Unequal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// A side of a comparison: numbers and named values, joined by `+`, `-` and `*`, from left to
/// right.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Term {
    pub(crate) first: Operand,
    pub(crate) rest: Vec<(char, Operand)>,
}

/// A number, or the name of one.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Operand {
    Number(i64),
    /// The value's name, and of which descriptor if not of the newest session's.
    Named(String, Option<i32>),
}
