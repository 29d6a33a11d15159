//! A statement's template, instruction for instruction, as C.
//!
//! Must stay true: each register is a variable of 64 bits. So an operand that an input and an
//! output share on the PowerPC is two here, which a statement must allow. A register that no
//! operand names is not read before it is written.

use super::instructions::{self, Instruction};
use super::statement::{Operand, Statement};
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// The statement in C; nothing where no instruction is the PowerPC's alone and it has others; a
/// reason where it is the PowerPC's and not known.
pub(super) fn translate(statement: &Statement) -> Result<Option<String>, String> {
    let lines = lines(&statement.template);
    if lines.iter().all(|line| line.name.is_empty()) {
        return Ok(None);
    }
    let mut code = Code::new(statement, &lines);
    let mut certain = false;
    let mut reason = None;
    for (place, line) in lines.iter().enumerate() {
        certain |= is_the_powerpcs(&line.name);
        if let Err(found) = code.line(place, line) {
            reason = reason.or(Some(found));
        }
    }
    match reason {
        Some(reason) if certain => Err(reason),
        Some(_) => Ok(None),
        None => code.finish().map(Some),
    }
}

/// True for an instruction that this machine does not have.
fn is_the_powerpcs(name: &str) -> bool {
    let base = name.trim_end_matches(['+', '-', '.']);
    let known = instructions::named(base).is_some()
        || access(base).is_some()
        || fence(base).is_some()
        || OTHERS.contains(&base);
    known && !instructions::is_common(base)
}

/// Instructions that are neither an expression nor a load or store.
const OTHERS: &[&str] = &[
    "bdnz", "bdz", "beq", "bge", "bgt", "ble", "blt", "bne", "bng", "bnl", "cmpd", "cmpdi",
    "cmpld", "cmpldi", "cmplw", "cmplwi", "cmpw", "cmpwi", "dcbf", "dcbst", "dcbt", "dcbtst",
    "dcbz", "fcmpo", "fcmpu", "icbi", "la", "ldarx", "lwarx", "mfcr", "mfctr", "mfocrf", "mfspr",
    "mftb", "mftbl", "mftbu", "mtctr", "stdcx", "stwcx",
];

/// A line of a template.
#[derive(Debug, Default)]
struct Line {
    label: String,
    /// The instruction, without operands' modifiers.
    name: String,
    operands: Vec<String>,
}

/// The lines of a template, without comments and directives that say nothing here.
fn lines(template: &str) -> Vec<Line> {
    let mut all = Vec::new();
    for text in template.split(['\n', ';']) {
        let mut text = text.split('#').next().unwrap_or_default().trim();
        while let Some((label, rest)) = text.split_once(':') {
            all.push(Line {
                label: label.trim().to_owned(),
                ..Line::default()
            });
            text = rest.trim();
        }
        if text.is_empty() || text.starts_with(".machine") || text.starts_with(".align") {
            continue;
        }
        let (name, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        // `%U1`, `%X1` and `%I2` say how an operand is written.
        let name = name.split('%').next().unwrap_or_default();
        let operands = match rest.trim() {
            "" => Vec::new(),
            rest => rest.split(',').map(|part| part.trim().to_owned()).collect(),
        };
        all.push(Line {
            label: String::new(),
            name: name.to_ascii_lowercase(),
            operands,
        });
    }
    all
}

/// Kinds of operands, by their constraints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Register,
    Float,
    Memory,
    Number,
}

/// C in the making.
struct Code<'a> {
    statement: &'a Statement,
    lines: &'a [Line],
    kinds: Vec<Option<Kind>>,
    body: String,
    /// Registers by number that were written.
    numbered: BTreeSet<String>,
    /// Operands of two registers, whose low half is named by itself.
    pairs: BTreeSet<usize>,
    labels: BTreeSet<usize>,
}

impl<'a> Code<'a> {
    fn new(statement: &'a Statement, lines: &'a [Line]) -> Self {
        let mut code = Self {
            statement,
            lines,
            kinds: Vec::new(),
            body: String::new(),
            numbered: BTreeSet::new(),
            pairs: BTreeSet::new(),
            labels: BTreeSet::new(),
        };
        for operand in &statement.operands {
            let kind = match matched(operand) {
                Some(other) => code.kinds.get(other).copied().flatten(),
                None => kind(&operand.constraint),
            };
            code.kinds.push(kind);
        }
        code
    }

    /// Takes one line of the template.
    fn line(&mut self, place: usize, line: &Line) -> Result<(), String> {
        if !line.label.is_empty() {
            // One that nothing goes to needs no place.
            let name = self.label(place);
            let _ = write!(self.body, "{name}: __attribute__((unused)); ");
            self.labels.insert(place);
            return Ok(());
        }
        if line.name.is_empty() {
            return Ok(());
        }
        let text = self.instruction(place, line)?;
        if !text.is_empty() {
            let _ = write!(self.body, "{text}; ");
        }
        Ok(())
    }

    fn instruction(&mut self, place: usize, line: &Line) -> Result<String, String> {
        let operands = line.operands.as_slice();
        let name = line.name.trim_end_matches(['+', '-']);
        let base = name.trim_end_matches('.');
        let unknown = || format!("`{name}` with these operands is not known here");
        // Hints of threads' priorities are without effect; so is a copy of a register to itself.
        let same = operands.len() == 3 && operands.iter().all(|other| *other == operands[0]);
        if base == "nop" || (same && base == "or") || (base == "ori" && is_zeros(operands)) {
            return Ok(String::new());
        }
        if let Some(found) = instructions::named(base) {
            // These exist with a dot alone.
            if matches!(base, "andi" | "andis") != name.ends_with('.') && base.starts_with("andi") {
                return Err(unknown());
            }
            return self
                .plain(&found, operands, name.ends_with('.'))
                .ok_or_else(unknown);
        }
        let found = match operands {
            [] => fence(name),
            [to] if matches!(name, "mftb" | "mftbl" | "mftbu") => {
                let shift = if name == "mftbu" { " >> 32" } else { "" };
                self.put(to, &format!("__sidecore_time(){shift}"))
            }
            [to, which] if matches!(name, "mftb" | "mfspr") => {
                let shift = match which.as_str() {
                    "268" => "",
                    "269" => " >> 32",
                    _ => return Err(unknown()),
                };
                self.put(to, &format!("__sidecore_time(){shift}"))
            }
            [to] if name == "mfcr" => self.put(to, FLAGS),
            [to, _] if matches!(name, "mfocrf" | "mfcr") => self.put(to, FLAGS),
            [from] if name == "mtctr" => Some(format!("__sidecore_ctr = {}", self.register(from)?)),
            [to] if name == "mfctr" => self.put(to, "__sidecore_ctr"),
            _ if name.starts_with('b') => self.branch(place, name, operands),
            _ if matches!(name, "lwarx" | "ldarx") => {
                let address = self.indexed(operands.get(1..).unwrap_or(&[]));
                let bytes = if name == "lwarx" { 4 } else { 8 };
                let to = operands.first().cloned().unwrap_or_default();
                address.and_then(|address| {
                    self.put(&to, &format!("__sidecore_reserve({address}, {bytes})"))
                })
            }
            _ if matches!(name, "stwcx." | "stdcx.") => {
                let address = self.indexed(operands.get(1..).unwrap_or(&[]));
                let bytes = if base == "stwcx" { 4 } else { 8 };
                let from = operands
                    .first()
                    .map(|from| self.register(from))
                    .transpose()?;
                address.zip(from).map(|(address, from)| {
                    format!("__sidecore_cr0 = __sidecore_store({address}, {from}, {bytes})")
                })
            }
            _ if base.starts_with("cmp") => self.compare(base, operands),
            [flag @ .., left, right] if matches!(name, "fcmpu" | "fcmpo") => {
                let left = self.float(left);
                let right = self.float(right);
                left.zip(right).and_then(|(left, right)| {
                    let flag = flag_of(flag)?;
                    Some(format!("{flag} = __sidecore_order({left}, {right})"))
                })
            }
            [_, _] | [_] if matches!(name, "dcbt" | "dcbtst" | "dcbf" | "dcbst" | "icbi") => {
                self.indexed(operands).map(|_| String::new())
            }
            [_, _, _] if matches!(name, "dcbt" | "dcbtst") => Some(String::new()),
            [_, _] | [_] if name == "dcbz" => self.indexed(operands).map(|address| {
                format!("__builtin_memset((void *)(unsigned long)(({address}) & ~127ULL), 0, 128)")
            }),
            [to, address] if name == "la" => {
                let address = self.address(address);
                address.and_then(|address| self.put(to, &address))
            }
            _ => match access(name) {
                Some(access) => self.access(&access, operands),
                None => return Err(format!("`{name}` is not known here")),
            },
        };
        found.ok_or_else(unknown)
    }

    /// An instruction of the table; with a dot it sets the first flags.
    fn plain(&mut self, found: &Instruction, operands: &[String], dot: bool) -> Option<String> {
        if operands.len() != found.operands.len() {
            return None;
        }
        let mut value = found.value.to_owned();
        for (number, (letter, operand)) in found.operands.chars().zip(operands).enumerate().skip(1)
        {
            let text = match letter {
                'r' => self.register(operand).ok()?,
                'z' if is_zero(operand) => "0ULL".to_owned(),
                'z' => self.register(operand).ok()?,
                'f' => self.float(operand)?,
                _ => self.number(operand)?,
            };
            value = value.replace(&format!("${number}"), &text);
        }
        if found.operands.starts_with('D') {
            let to = self.float(operands.first()?)?;
            return (!dot).then(|| format!("{to} = {value}"));
        }
        if value.contains("$0") {
            value = value.replace("$0", &self.register(operands.first()?).ok()?);
        }
        let mut text = self.put(operands.first()?, &value)?;
        if dot {
            let to = self.register(operands.first()?).ok()?;
            let _ = write!(
                text,
                "; __sidecore_cr0 = __sidecore_compare((long){to}, 0L)"
            );
        }
        Some(text)
    }

    fn compare(&mut self, name: &str, operands: &[String]) -> Option<String> {
        let kind = match name {
            "cmpw" | "cmpwi" => "int",
            "cmplw" | "cmplwi" => "unsigned int",
            "cmpd" | "cmpdi" => "long long",
            "cmpld" | "cmpldi" => "unsigned long long",
            _ => return None,
        };
        let [flag @ .., left, right] = operands else {
            return None;
        };
        let flag = flag_of(flag)?;
        let left = self.register(left).ok()?;
        let right = if name.ends_with('i') || is_literal(right) {
            self.number(right)?
        } else {
            self.register(right).ok()?
        };
        Some(format!(
            "{flag} = __sidecore_compare(({kind}){left}, ({kind}){right})"
        ))
    }

    fn branch(&mut self, place: usize, name: &str, operands: &[String]) -> Option<String> {
        let [flag @ .., target] = operands else {
            return None;
        };
        let flag = flag_of(flag)?;
        let condition = match name {
            "b" => String::new(),
            "beq" => format!("if ({flag} & 2)"),
            "bne" => format!("if (!({flag} & 2))"),
            "blt" => format!("if ({flag} & 8)"),
            "bge" | "bnl" => format!("if (!({flag} & 8))"),
            "bgt" => format!("if ({flag} & 4)"),
            "ble" | "bng" => format!("if (!({flag} & 4))"),
            "bdnz" => "if (--__sidecore_ctr)".to_owned(),
            "bdz" => "if (!--__sidecore_ctr)".to_owned(),
            _ => return None,
        };
        let target = self.target(place, target)?;
        Some(format!("{condition} goto {target}"))
    }

    /// The label that a branch at `place` goes to.
    fn target(&self, place: usize, text: &str) -> Option<String> {
        let direction = text.chars().last().filter(|_| {
            let digits = &text[..text.len() - 1];
            !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
        });
        let is = |at: usize, name: &str| self.lines[at].label == name;
        let found = match direction {
            Some('b') => (0..place).rev().find(|at| is(*at, &text[..text.len() - 1])),
            Some('f') => (place..self.lines.len()).find(|at| is(*at, &text[..text.len() - 1])),
            _ => (0..self.lines.len()).find(|at| is(*at, text)),
        };
        found.map(|at| self.label(at))
    }

    fn label(&self, place: usize) -> String {
        format!("__sidecore_l{place}")
    }

    fn access(&mut self, access: &Access, operands: &[String]) -> Option<String> {
        let [register, place @ ..] = operands else {
            return None;
        };
        let address = if access.indexed {
            self.indexed(place)?
        } else {
            let [place] = place else { return None };
            self.address(place)?
        };
        let kind = access.kind;
        let place = format!("__sidecore_at({kind}, {address})");
        let turn = |value: &str| match (access.turned, kind) {
            (true, "u16") => format!("__builtin_bswap16({value})"),
            (true, "u32") => format!("__builtin_bswap32({value})"),
            (true, _) => format!("__builtin_bswap64({value})"),
            _ => value.to_owned(),
        };
        if kind.starts_with('f') {
            let register = self.float(register)?;
            return Some(if access.stores {
                format!("{place} = {register}")
            } else {
                format!("{register} = {place}")
            });
        }
        if access.stores {
            let register = self.register(register).ok()?;
            let unsigned = kind.replace('s', "u");
            let value = turn(&format!("(__sidecore_{unsigned}){register}"));
            return Some(format!("{place} = {value}"));
        }
        let value = turn(&place);
        self.put(register, &format!("(long long){value}"))
    }

    /// The address of `8(%1)` or of an operand in memory.
    fn address(&mut self, text: &str) -> Option<String> {
        if let Some(operand) = self.operand(text)
            && self.kinds[operand] == Some(Kind::Memory)
        {
            return Some(format!("__sidecore_o{operand}"));
        }
        let (offset, rest) = text.split_once('(')?;
        let base = rest.strip_suffix(')')?;
        let offset = if offset.trim().is_empty() {
            "0".to_owned()
        } else {
            self.number(offset)?
        };
        if is_zero(base) {
            return Some(offset);
        }
        Some(format!("({} + {offset})", self.register(base).ok()?))
    }

    /// The address of two registers, or of an operand in memory that stands for both.
    fn indexed(&mut self, operands: &[String]) -> Option<String> {
        match operands {
            [both] => {
                let text = both.replace("%y", "%");
                let operand = self.operand(&text)?;
                let memory = self.kinds[operand] == Some(Kind::Memory);
                memory.then(|| format!("__sidecore_o{operand}"))
            }
            [first, second] => {
                let second = self.register(second).ok()?;
                if is_zero(first) {
                    return Some(second);
                }
                Some(format!("({} + {second})", self.register(first).ok()?))
            }
            _ => None,
        }
    }

    /// The operand that `%1` or `%[name]` names.
    fn operand(&self, text: &str) -> Option<usize> {
        let name = text.strip_prefix('%')?;
        let found = if let Some(name) = name.strip_prefix('[') {
            let name = name.strip_suffix(']')?;
            let mut all = self.statement.operands.iter();
            all.position(|operand| operand.name == name)?
        } else {
            name.parse().ok()?
        };
        (found < self.statement.operands.len()).then_some(found)
    }

    /// Writes a value into a register.
    fn put(&mut self, text: &str, value: &str) -> Option<String> {
        if let Some(number) = register_number(text) {
            // The stack's, the tables' and the thread's.
            if matches!(number.as_str(), "1" | "2" | "13") {
                return None;
            }
            self.numbered.insert(number);
        }
        let register = self.register(text).ok()?;
        Some(format!("{register} = (unsigned long long)({value})"))
    }

    /// The variable of a register.
    fn register(&mut self, text: &str) -> Result<String, String> {
        let unknown = || format!("operand `{text}` is not known here");
        if let Some(low) = text.strip_prefix("%L") {
            let operand = self.operand(&format!("%{low}")).ok_or_else(unknown)?;
            self.pairs.insert(operand);
            return Ok(format!("__sidecore_low{operand}"));
        }
        if let Some(operand) = self.operand(text) {
            return match self.kinds[operand] {
                Some(Kind::Register | Kind::Number) => Ok(self.variable(operand)),
                _ => Err(unknown()),
            };
        }
        let number = register_number(text).ok_or_else(unknown)?;
        if !self.numbered.contains(&number) {
            return Err(format!("register {number} is read before it is written"));
        }
        Ok(format!("__sidecore_r{number}"))
    }

    fn float(&mut self, text: &str) -> Option<String> {
        let operand = self.operand(text)?;
        (self.kinds[operand] == Some(Kind::Float)).then(|| self.variable(operand))
    }

    /// The variable of an operand: an input that shares an output's register has that one.
    fn variable(&self, operand: usize) -> String {
        let operand = matched(&self.statement.operands[operand]).unwrap_or(operand);
        format!("__sidecore_o{operand}")
    }

    /// A number, within which operands may stand.
    fn number(&mut self, text: &str) -> Option<String> {
        let mut all = String::from("(");
        let mut rest = text;
        while let Some(at) = rest.find('%') {
            let (before, behind) = rest.split_at(at);
            let length = if behind[1..].starts_with('[') {
                behind.find(']')? + 1
            } else {
                let digits = behind[1..].bytes().take_while(u8::is_ascii_digit);
                digits.count() + 1
            };
            all.push_str(arithmetic(before)?);
            let operand = self.operand(&behind[..length])?;
            match self.kinds[operand] {
                Some(Kind::Register | Kind::Number) => all.push_str(&self.variable(operand)),
                _ => return None,
            }
            rest = &behind[length..];
        }
        all.push_str(arithmetic(rest)?);
        all.push(')');
        (all.len() > 2).then_some(all)
    }

    /// The whole statement.
    fn finish(self) -> Result<String, String> {
        let operands = &self.statement.operands;
        let mut text = String::from("do { ");
        for place in &self.labels {
            let _ = write!(text, "__label__ {}; ", self.label(*place));
        }
        if self.statement.memory {
            text.push_str(BARRIER);
        }
        for (number, operand) in operands.iter().enumerate() {
            if matched(operand).is_some() {
                continue;
            }
            let read = number >= self.statement.written || operand.constraint.contains('+');
            let shared = operands.iter().find(|other| matched(other) == Some(number));
            let from = shared.or(read.then_some(operand));
            let expression = &operand.expression;
            match self.kinds[number] {
                Some(Kind::Memory) => {
                    let _ = write!(
                        text,
                        "unsigned long long __sidecore_o{number} = (unsigned long)&({expression}); "
                    );
                }
                Some(Kind::Float) => {
                    let value = from.map_or("0", |from| &from.expression);
                    let _ = write!(text, "double __sidecore_o{number} = ({value}); ");
                }
                Some(Kind::Register) => {
                    let value = from.map_or_else(
                        || "0".to_owned(),
                        |from| format!("__sidecore_in(({}))", from.expression),
                    );
                    let _ = write!(text, "unsigned long long __sidecore_o{number} = {value}; ");
                }
                Some(Kind::Number) => {
                    let _ = write!(
                        text,
                        "const long long __sidecore_o{number} = (long long)({expression}); "
                    );
                }
                None => {
                    return Err(format!(
                        "the constraint \"{}\" is not known here",
                        operand.constraint
                    ));
                }
            }
        }
        for pair in &self.pairs {
            let _ = write!(
                text,
                "unsigned long long __sidecore_low{pair} = __sidecore_o{pair} & 0xffffffff; \
                 __sidecore_o{pair} >>= 32; "
            );
        }
        for number in &self.numbered {
            let _ = write!(text, "unsigned long long __sidecore_r{number} = 0; ");
        }
        for (name, start) in [
            ("unsigned long", "__sidecore_ctr = 0"),
            ("unsigned int", "__sidecore_ca = 0"),
        ] {
            if self.body.contains(&start[..start.len() - 4]) {
                let _ = write!(text, "{name} {start}; ");
            }
        }
        let all_flags = self.body.contains("__sidecore_cr7");
        for flag in 0..8 {
            let name = format!("__sidecore_cr{flag}");
            if all_flags || self.body.contains(&name) {
                let _ = write!(text, "unsigned int {name} = 0; ");
            }
        }
        text.push_str(&self.body);
        for (number, operand) in operands.iter().enumerate().take(self.statement.written) {
            let expression = &operand.expression;
            if self.pairs.contains(&number) {
                let _ = write!(
                    text,
                    "__sidecore_o{number} = __sidecore_o{number} << 32 | \
                     (__sidecore_low{number} & 0xffffffff); "
                );
            }
            match self.kinds[number] {
                Some(Kind::Register) => {
                    let _ = write!(
                        text,
                        "__sidecore_out(({expression}), __sidecore_o{number}); "
                    );
                }
                Some(Kind::Float) => {
                    let _ = write!(text, "({expression}) = __sidecore_o{number}; ");
                }
                _ => {}
            }
        }
        // An operand that the template does not name is used nonetheless.
        for (number, operand) in operands.iter().enumerate() {
            if matched(operand).is_none() {
                let _ = write!(text, "(void)__sidecore_o{number}; ");
            }
        }
        if self.statement.memory {
            text.push_str(BARRIER);
        }
        text.push_str("} while (0)");
        Ok(text)
    }
}

/// The output whose register an input shares.
fn matched(operand: &Operand) -> Option<usize> {
    let constraint = operand.constraint.trim_matches(['%', '&', ' ']);
    constraint.parse().ok()
}

fn kind(constraint: &str) -> Option<Kind> {
    let letters = constraint.trim_start_matches(['=', '+', '&', '%', '*']);
    if letters.contains(['r', 'b', 'g', 'X']) {
        Some(Kind::Register)
    } else if letters.contains(['m', 'Z', 'Q', 'o', 'V', 'R', 'a']) {
        Some(Kind::Memory)
    } else if letters.contains(['f', 'd']) {
        Some(Kind::Float)
    } else if letters.contains(['i', 'n', 'I', 'J', 'K', 'L', 'M', 'N', 'O', 'P']) {
        Some(Kind::Number)
    } else {
        None
    }
}

/// The number of a register that is named by it.
fn register_number(text: &str) -> Option<String> {
    let text = text.strip_prefix("%%").unwrap_or(text);
    let digits = text.strip_prefix('r').unwrap_or(text);
    let number: u8 = digits.parse().ok()?;
    (number < 32).then(|| number.to_string())
}

fn is_zero(text: &str) -> bool {
    matches!(text, "0" | "r0" | "%%r0")
}

fn is_zeros(operands: &[String]) -> bool {
    operands.len() == 3 && operands.iter().all(|operand| is_zero(operand))
}

fn is_literal(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_digit() || first == '-')
}

/// Text of a number without operands; nothing where it names something.
fn arithmetic(text: &str) -> Option<&str> {
    let known = |letter: char| letter.is_ascii_hexdigit() || "xX+-*/()~<>&| ".contains(letter);
    text.chars().all(known).then_some(text)
}

/// The variable of a field of flags: the first where none is named.
fn flag_of(operands: &[String]) -> Option<String> {
    let number = match operands {
        [] => "0",
        [one] => one.trim_start_matches("%%").trim_start_matches("cr"),
        _ => return None,
    };
    let number: u8 = number.parse().ok()?;
    (number < 8).then(|| format!("__sidecore_cr{number}"))
}

/// Instructions that order memory, or that have no effect here.
fn fence(name: &str) -> Option<String> {
    Some(match name {
        "sync" | "hwsync" | "ptesync" => "__sync_synchronize()".to_owned(),
        "lwsync" | "eieio" => "__atomic_thread_fence(__ATOMIC_ACQ_REL)".to_owned(),
        "isync" => "__atomic_thread_fence(__ATOMIC_ACQUIRE)".to_owned(),
        "trap" => "__builtin_trap()".to_owned(),
        _ => return None,
    })
}

/// A load or store.
#[derive(Debug)]
struct Access {
    stores: bool,
    /// The end of the name of `sidecore_powerpc.h`'s type.
    kind: &'static str,
    indexed: bool,
    /// True where bytes are reversed.
    turned: bool,
}

/// The load or store of a name; those that change their address's register are none of these.
fn access(name: &str) -> Option<Access> {
    let stores = name.starts_with("st");
    let rest = name.strip_prefix(if stores { "st" } else { "l" })?;
    let (rest, indexed) = rest
        .strip_suffix('x')
        .map_or((rest, false), |rest| (rest, true));
    let (rest, turned) = match rest.strip_suffix("br") {
        Some(rest) if indexed => (rest, true),
        _ => (rest, false),
    };
    let kind = match (stores, turned, rest) {
        (true, false, "b") | (false, false, "bz") => "u8",
        (true, _, "h") | (false, false, "hz") | (false, true, "h") => "u16",
        (true, _, "w") | (false, false, "wz") | (false, true, "w") => "u32",
        (_, _, "d") => "u64",
        (false, false, "ha") => "s16",
        (false, false, "wa") => "s32",
        (_, false, "fs") => "f32",
        (_, false, "fd") => "f64",
        _ => return None,
    };
    Some(Access {
        stores,
        kind,
        indexed,
        turned,
    })
}

const BARRIER: &str = "__asm__ __volatile__(\"\" : : : \"memory\"); ";
/// All fields of flags as a register has them.
const FLAGS: &str = "(unsigned long long)(__sidecore_cr0 << 28 | __sidecore_cr1 << 24 | \
    __sidecore_cr2 << 20 | __sidecore_cr3 << 16 | __sidecore_cr4 << 12 | __sidecore_cr5 << 8 | \
    __sidecore_cr6 << 4 | __sidecore_cr7)";
