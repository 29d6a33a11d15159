//! A translated statement as one block of C: variables for its operands and registers, its body,
//! and the operands' new values.
//!
//! Must stay true: outputs are written in the operands' order, behind the whole body.

use super::{BARRIER, Code, Kind, matched};
use std::borrow::Cow;
use std::fmt::Write as _;

impl Code<'_> {
    /// The whole statement.
    pub(super) fn finish(self) -> Result<String, String> {
        let mut text = String::from("do { ");
        // Local, since the statement may be expanded twice within a function.
        for place in &self.labels {
            let _ = write!(text, "__label__ {}; ", self.label(*place));
        }
        if self.statement.memory {
            text.push_str(BARRIER);
        }
        self.operands(&mut text)?;
        self.registers(&mut text);
        text.push_str(&self.body);
        self.results(&mut text);
        // An operand that the template does not name is used nonetheless.
        for (number, operand) in self.statement.operands.iter().enumerate() {
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

    /// A variable for each operand, with its value where the statement reads it.
    fn operands(&self, text: &mut String) -> Result<(), String> {
        let operands = &self.statement.operands;
        for (number, operand) in operands.iter().enumerate() {
            if matched(operand).is_some() {
                continue;
            }
            // An output without `+` is written alone: its old value may not exist.
            let read = number >= self.statement.written || operand.constraint.contains('+');
            let shared = operands.iter().find(|other| matched(other) == Some(number));
            let from = shared.or(read.then_some(operand));
            let expression = &operand.expression;
            if self.is_bound(number) {
                let _ = write!(
                    text,
                    "__typeof__({expression}) *__sidecore_p{number} = &({expression}); "
                );
            }
            match self.kinds[number] {
                // By its address, as the instructions take it; what they do to it is no result.
                Some(Kind::Memory) => {
                    let _ = write!(
                        text,
                        "unsigned long long __sidecore_o{number} = (unsigned long)&({expression}); "
                    );
                }
                Some(Kind::Float) => {
                    let value =
                        from.map_or("0".into(), |from| self.place(number, &from.expression));
                    let _ = write!(text, "double __sidecore_o{number} = ({value}); ");
                }
                Some(Kind::Register) => {
                    let value = from.map_or_else(
                        || "0".to_owned(),
                        |from| {
                            let value = self.place(number, &from.expression);
                            format!("__sidecore_in(({value}))")
                        },
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
        Ok(())
    }

    /// True for an operand that is read and written, by an expression with effects of its own:
    /// these happen once.
    fn is_bound(&self, number: usize) -> bool {
        let operand = &self.statement.operands[number];
        let both = number < self.statement.written && operand.constraint.contains('+');
        both && has_effects(&operand.expression)
    }

    /// The expression of an operand's value, or of the place that it names.
    fn place<'e>(&self, number: usize, expression: &'e str) -> Cow<'e, str> {
        if self.is_bound(number) {
            format!("*__sidecore_p{number}").into()
        } else {
            expression.into()
        }
    }

    /// A variable for each register and field of flags that the body names.
    fn registers(&self, text: &mut String) {
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
        // `mfcr` reads all fields and names the last one.
        let all_flags = self.body.contains("__sidecore_cr7");
        for flag in 0..8 {
            let name = format!("__sidecore_cr{flag}");
            if all_flags || self.body.contains(&name) {
                let _ = write!(text, "unsigned int {name} = 0; ");
            }
        }
    }

    /// Assigns the statement's results to the operands' places.
    fn results(&self, text: &mut String) {
        let operands = &self.statement.operands;
        for (number, operand) in operands.iter().enumerate().take(self.statement.written) {
            let expression = self.place(number, &operand.expression);
            // Two registers of 32 bits are one value again, the high half first.
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
    }
}

/// True where an expression may change something each time that it is evaluated: it counts, assigns
/// or calls. A cast or a comparison that is taken for one costs a pointer.
fn has_effects(expression: &str) -> bool {
    let is_call = expression.match_indices('(').any(|(at, _)| {
        let before = expression[..at].trim_end();
        before.ends_with(|letter: char| letter.is_alphanumeric() || letter == '_' || letter == ')')
    });
    is_call || expression.contains("++") || expression.contains("--") || expression.contains('=')
}
