//! From text to a script. The grammar is in `docs/formats/drill.md`.
//!
//! Must stay true: nothing here panics, whatever the text; nesting is bounded.

use super::cursor::{Cursor, Read};
use super::error::{DrillError, Problem};
use super::names;
use super::notation::{cut, packet};
use super::script::{
    Action, Base, Call, Check, Event, Operand, Relation, Script, Span, Term, Value, When,
};
use super::settings::Settings;

/// Lines of a script; more are refused.
const LINES_MAX: usize = 100_000;
/// Nesting limit of brackets and braces.
const DEPTH_MAX: usize = 8;

/// Parses a script.
///
/// # Errors
/// [`DrillError`] with the first line that is not of the grammar.
pub fn parse(name: &str, text: &str) -> Result<Script, DrillError> {
    let fail = |line, problem| DrillError {
        script: name.to_owned(),
        line,
        problem,
    };
    let text = without_comments(text);
    let mut settings = Settings::default();
    let mut events: Vec<Event> = Vec::new();
    let mut lines = text.lines().enumerate();
    while let Some((index, first)) = lines.next() {
        let line = index + 1;
        if line > LINES_MAX {
            let problem = Problem::Syntax(format!("more than {LINES_MAX} lines"));
            return Err(fail(line, problem));
        }
        let mut text = first.trim().to_owned();
        if text.is_empty() {
            continue;
        }
        if let Some(setting) = text.strip_prefix("--") {
            if !events.is_empty() {
                let problem = Problem::Syntax("settings come before the first event".to_owned());
                return Err(fail(line, problem));
            }
            settings
                .set(setting)
                .map_err(|problem| fail(line, problem))?;
            continue;
        }
        // A block of assertions extends to its end.
        while text.contains("%{") && !text.contains("}%") {
            let Some((_, more)) = lines.next() else { break };
            text.push(' ');
            text.push_str(more.trim());
        }
        let (when, action) = event(&text).map_err(|problem| fail(line, problem))?;
        events.push(Event {
            line,
            text,
            when,
            action,
        });
    }
    Ok(Script { settings, events })
}

/// Comments become blanks, so that lines keep their numbers; text in quotes stays.
fn without_comments(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    let mut quoted = false;
    while let Some(next) = chars.next() {
        match (next, chars.peek()) {
            ('"', _) => quoted = !quoted,
            ('\n', _) => quoted = false,
            ('/', Some('/')) if !quoted => {
                while chars.peek().is_some_and(|&next| next != '\n') {
                    chars.next();
                }
                continue;
            }
            ('/', Some('*')) if !quoted => {
                chars.next();
                let mut before = ' ';
                for next in chars.by_ref() {
                    if next == '\n' {
                        out.push('\n');
                    }
                    if before == '*' && next == '/' {
                        break;
                    }
                    before = next;
                }
                continue;
            }
            _ => {}
        }
        out.push(next);
    }
    out
}

fn event(text: &str) -> Read<(When, Action)> {
    let mut at = Cursor::new(text);
    let when = when(&mut at)?;
    let action = if at.eat("<") {
        let (flow, packet) = packet(&mut at)?;
        Action::Inject(flow, packet, cut(&mut at, true)?)
    } else if at.rest().starts_with('>') {
        at.expect(">")?;
        let (flow, packet) = packet(&mut at)?;
        Action::Expect(flow, packet, cut(&mut at, false)?)
    } else if at.eat("%{") {
        Action::Assert(checks(&mut at)?)
    } else {
        Action::Call(call(&mut at)?)
    };
    if !at.at_end() {
        return Err(at.wrong("the end of the line"));
    }
    let packet = matches!(action, Action::Expect(..));
    if !packet && (when.base == Base::Any || matches!(when.span, Span::Until(_))) {
        let what = "only an expected packet may come at any time or in a range of times";
        return Err(Problem::Syntax(what.to_owned()));
    }
    if matches!(when.span, Span::Blocks(_)) && !matches!(action, Action::Call(_)) {
        let what = "only a call takes from one time to another";
        return Err(Problem::Syntax(what.to_owned()));
    }
    Ok((when, action))
}

/// `0.1`, `+0.1`, `*`, and with `~` or `...` an end; a packet or a call may stand without a time.
fn when(at: &mut Cursor<'_>) -> Read<When> {
    let point = |base, at_ns| When {
        base,
        at_ns,
        span: Span::Point,
    };
    if at.eat("*") {
        return Ok(point(Base::Any, 0));
    }
    let timed = |at: &Cursor<'_>| {
        at.rest()
            .starts_with(|next: char| next == '+' || next == '.' || next.is_ascii_digit())
    };
    if !timed(at) {
        return Ok(point(Base::Before, 0));
    }
    let base = if at.eat("+") {
        Base::Before
    } else {
        Base::Begin
    };
    let at_ns = at.seconds()?;
    let dots = at.eat("...");
    if !dots && !at.eat("~") {
        return Ok(point(base, at_ns));
    }
    let relative = at.eat("+");
    let end_ns = at.seconds()?;
    // Both ends are counted from the same base.
    let Some(length_ns) = end_ns
        .checked_sub(at_ns)
        .filter(|_| relative == (base == Base::Before) || !relative)
    else {
        return Err(at.wrong("an end after its beginning, counted like it,"));
    };
    let span = if dots {
        Span::Blocks(length_ns)
    } else {
        Span::Until(length_ns)
    };
    Ok(When { base, at_ns, span })
}

fn call(at: &mut Cursor<'_>) -> Read<Call> {
    let name = at
        .name()
        .ok_or_else(|| at.wrong("a packet, a call or `%{`"))?;
    at.expect("(")?;
    let arguments = values(at, ")", 0)?;
    at.expect("=")?;
    if at.eat("...") {
        return Ok(Call {
            name: name.to_owned(),
            arguments,
            result: None,
            error: None,
        });
    }
    let Value::Number(result) = value(at, 0)? else {
        return Err(at.wrong("a result"));
    };
    let error = at.name().map(str::to_owned);
    if let Some(error) = &error
        && !names::is_error(error)
    {
        return Err(Problem::Syntax(format!(
            "`{error}` is no error that is known here"
        )));
    }
    if at.eat("(") {
        // Suffixes that scripts add in words.
        at.take_while(|next| next != ')');
        at.expect(")")?;
    }
    Ok(Call {
        name: name.to_owned(),
        arguments,
        result: Some(result),
        error,
    })
}

fn values(at: &mut Cursor<'_>, end: &str, depth: usize) -> Read<Vec<Value>> {
    let mut values = Vec::new();
    if at.eat(end) {
        return Ok(values);
    }
    loop {
        values.push(value(at, depth)?);
        if at.eat(end) {
            return Ok(values);
        }
        at.expect(",")?;
    }
}

fn value(at: &mut Cursor<'_>, depth: usize) -> Read<Value> {
    if depth > DEPTH_MAX {
        return Err(at.wrong("something less deep"));
    }
    if at.eat("...") {
        return Ok(Value::Usual);
    }
    if at.rest().starts_with('"') {
        return Ok(Value::Text(at.quoted()?.to_owned()));
    }
    if at.eat("[") {
        return Ok(Value::List(values(at, "]", depth + 1)?));
    }
    if at.eat("{") {
        return fields(at, depth + 1);
    }
    let mut sum = 0;
    loop {
        match at.name() {
            None => sum |= at.number()?,
            Some(name) if at.eat("(") => return function(at, name, depth),
            Some(name) => {
                let unknown = || Problem::Syntax(format!("`{name}` is no name that is known here"));
                sum |= names::number(name).ok_or_else(unknown)?;
            }
        }
        if !at.eat("|") {
            return Ok(Value::Number(sum));
        }
    }
}

/// Call of a C macro around an address, such as `htons`: evaluates to its last argument.
fn function(at: &mut Cursor<'_>, name: &str, depth: usize) -> Read<Value> {
    if !["htons", "htonl", "inet_addr", "inet_pton"].contains(&name) {
        return Err(Problem::Syntax(format!(
            "`{name}` is no function that is known here"
        )));
    }
    let last = values(at, ")", depth + 1)?.pop();
    last.ok_or_else(|| at.wrong("an argument"))
}

fn fields(at: &mut Cursor<'_>, depth: usize) -> Read<Value> {
    let mut fields = Vec::new();
    if at.eat("}") {
        return Ok(Value::Fields(fields));
    }
    loop {
        let name = at.name().ok_or_else(|| at.wrong("a field's name"))?;
        at.expect("=")?;
        fields.push((name.to_owned(), value(at, depth)?));
        if at.eat("}") {
            return Ok(Value::Fields(fields));
        }
        at.expect(",")?;
    }
}

/// `assert A == B and C < D; assert …`, to the end of the block.
fn checks(at: &mut Cursor<'_>) -> Read<Vec<Check>> {
    let mut checks = Vec::new();
    loop {
        while at.eat(";") {}
        if at.eat("}%") {
            return Ok(checks);
        }
        if !at.eat_word("assert") {
            return Err(at.wrong("`assert` or `}%`"));
        }
        loop {
            checks.push(check(at)?);
            if !at.eat_word("and") && !at.eat("&&") {
                break;
            }
        }
    }
}

fn check(at: &mut Cursor<'_>) -> Read<Check> {
    let left = term(at)?;
    let relation = RELATIONS.iter().find(|(sign, _)| at.eat(sign));
    let (_, relation) = relation.ok_or_else(|| at.wrong("a comparison"))?;
    Ok(Check {
        left,
        relation: *relation,
        right: term(at)?,
    })
}

/// Longer signs first.
pub(crate) const RELATIONS: [(&str, Relation); 6] = [
    ("==", Relation::Equal),
    ("!=", Relation::Unequal),
    ("<=", Relation::LessOrEqual),
    (">=", Relation::GreaterOrEqual),
    ("<", Relation::Less),
    (">", Relation::Greater),
];

fn term(at: &mut Cursor<'_>) -> Read<Term> {
    let first = operand(at)?;
    let mut rest = Vec::new();
    while let Some(sign) = ['+', '-', '*']
        .into_iter()
        .find(|sign| at.eat(&sign.to_string()))
    {
        rest.push((sign, operand(at)?));
    }
    Ok(Term { first, rest })
}

fn operand(at: &mut Cursor<'_>) -> Read<Operand> {
    let Some(name) = at.name() else {
        return at.number().map(Operand::Number);
    };
    if let Some(number) = names::number(name) {
        return Ok(Operand::Number(number));
    }
    let mut of = None;
    if at.eat("[") {
        of = Some(at.small()?);
        at.expect("]")?;
    }
    Ok(Operand::Named(name.to_owned(), of))
}
