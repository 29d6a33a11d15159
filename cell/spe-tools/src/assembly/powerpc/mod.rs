//! A statement's template, instruction for instruction, as C.
//!
//! Must stay true: each register is a variable of 64 bits. So an operand that an input and an
//! output share on the PowerPC is two here, which a statement must allow. A register that no
//! operand names is not read before it is written.

mod operands;
mod whole;

use super::instructions::{self, Instruction};
use super::{Operand, Statement};
use operands::access;
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
    // All lines, even behind an unknown one: only then is it sure whether the statement is the
    // PowerPC's or this machine's.
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
    // `+` and `-` are hints of a branch's direction, a dot asks for flags.
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
        // Comments of the PowerPC's assembler.
        let mut text = text.split('#').next().unwrap_or_default().trim();
        // A label may stand in front of an instruction, and several may.
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
            // An input that names an output by number is of the output's kind.
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
            // `andi` without a dot is none of the PowerPC's.
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
            // All eight fields; the form with a mask leaves the others undefined, so all of them
            // do.
            [to] if name == "mfcr" => self.put(to, FLAGS),
            [to, _] if matches!(name, "mfocrf" | "mfcr") => self.put(to, FLAGS),
            // The loop's counter is one variable of the block.
            [from] if name == "mtctr" => Some(format!("__sidecore_ctr = {}", self.register(from)?)),
            [to] if name == "mfctr" => self.put(to, "__sidecore_ctr"),
            _ if name.starts_with('b') => self.branch(place, name, operands),
            // A reservation is on the line, and its value is what the later store compares with.
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
            // Caches need no help here, but an address that is not understood makes the statement
            // unknown.
            [_, _] | [_] if matches!(name, "dcbt" | "dcbtst" | "dcbf" | "dcbst" | "icbi") => {
                self.indexed(operands).map(|_| String::new())
            }
            [_, _, _] if matches!(name, "dcbt" | "dcbtst") => Some(String::new()),
            // The Cell's lines have 128 bytes; this machine's do not matter.
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
        // The first one is the target, which is put in last.
        for (number, (letter, operand)) in found.operands.chars().zip(operands).enumerate().skip(1)
        {
            let text = match letter {
                'r' => self.register(operand).ok()?,
                // Register 0 as a base is the number 0.
                'z' if is_zero(operand) => "0ULL".to_owned(),
                'z' => self.register(operand).ok()?,
                'f' => self.float(operand)?,
                _ => self.number(operand)?,
            };
            value = value.replace(&format!("${number}"), &text);
        }
        if found.operands.starts_with('D') {
            let to = self.float(operands.first()?)?;
            // With a dot a float's instruction sets the second flags, which nothing here reads.
            return (!dot).then(|| format!("{to} = {value}"));
        }
        // It changes a part of its target.
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
        // Assemblers take `cmpw` with a number, too.
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
        let is = |at: usize, name: &str| self.lines[at].label == name;
        // `1b` and `1f` are the next label 1 backward and forward; others are the template's own.
        let numbered = text.split_at_checked(text.len().saturating_sub(1));
        let numbered = numbered.filter(|(label, _)| {
            !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_digit())
        });
        let found = match numbered {
            Some((label, "b")) => (0..place).rev().find(|at| is(*at, label)),
            Some((label, "f")) => (place..self.lines.len()).find(|at| is(*at, label)),
            _ => (0..self.lines.len()).find(|at| is(*at, text)),
        };
        found.map(|at| self.label(at))
    }

    fn label(&self, place: usize) -> String {
        format!("__sidecore_l{place}")
    }
}

/// The output whose register an input shares.
fn matched(operand: &Operand) -> Option<usize> {
    let constraint = operand.constraint.trim_matches(['%', '&', ' ']);
    constraint.parse().ok()
}

fn kind(constraint: &str) -> Option<Kind> {
    let letters = constraint.trim_start_matches(['=', '+', '&', '%', '*']);
    // Of several allowed kinds the register: it holds any of them.
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

const BARRIER: &str = "__asm__ __volatile__(\"\" : : : \"memory\"); ";
/// All fields of flags as a register has them.
const FLAGS: &str = "(unsigned long long)(__sidecore_cr0 << 28 | __sidecore_cr1 << 24 | \
    __sidecore_cr2 << 20 | __sidecore_cr3 << 16 | __sidecore_cr4 << 12 | __sidecore_cr5 << 8 | \
    __sidecore_cr6 << 4 | __sidecore_cr7)";
