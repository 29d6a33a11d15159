//! Devices, programs, permissions and cores that this machine offers to this process, and what
//! follows for each product.
//!
//! Why here: only the operating system knows, and a service that is refused something can report
//! only its own need; this asks for everything at once. Must stay true: nothing is changed or left
//! open. Every facility that can be requested is requested rather than looked up, because a file's
//! presence says little in a container. A remedy fits the cause that was found. Takes some
//! milliseconds.

mod cause;
mod offers;
mod verdict;

use serde::Serialize;
use sidecore_terminal::Text;
pub use verdict::{Product, State};

/// Properties of the program that asks.
#[derive(Debug, Clone, Copy, Default)]
pub struct Built {
    /// True if it was built with MPI.
    pub with_mpi: bool,
}

/// A device or facility that a machine may have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Offer {
    /// Name of the device or facility.
    pub name: &'static str,
    /// True if this process can use it.
    pub there: bool,
    /// Result of the check, for the user to read.
    pub found: String,
    /// Use that Sidecore makes of it.
    pub used_for: &'static str,
    /// Why it cannot be used, in a word that scripts may compare; none where it can be.
    pub cause: Option<&'static str>,
    /// Command or change that provides it, if it is missing and there is one.
    pub remedy: Option<String>,
}

/// All answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Each facility.
    pub offers: Vec<Offer>,
    /// Each product's verdict.
    pub products: Vec<Product>,
}

/// Asks this machine for everything.
#[must_use]
pub fn examine(built: Built) -> Report {
    let offers = offers::ask(built);
    let products = verdict::of(&offers);
    Report { offers, products }
}

impl Report {
    /// The same for people: what is there, what is not with its remedy, the verdicts.
    #[must_use]
    pub fn text(&self) -> Text {
        let mut text = Text::new();
        let width = self.offers.iter().map(|offer| offer.name.len()).max();
        let width = width.unwrap_or(0);
        // Behind the mark, the name and the gaps.
        let indent = "yes  ".len() + width + 2;
        for offer in &self.offers {
            let mark = if offer.there { "yes" } else { "no " };
            let (name, found) = (offer.name, &offer.found);
            text.hanging(format!("{mark}  {name:width$}  {found}"), indent);
            if !offer.there {
                let used_for = offer.used_for;
                text.hanging(format!("{:indent$}wanted for: {used_for}", ""), indent + 2);
            }
            if let Some(remedy) = &offer.remedy {
                text.hanging(format!("{:indent$}to have it: {remedy}", ""), indent + 2);
            }
        }
        text.line("");
        for product in &self.products {
            let said = match product.why.is_empty() {
                true => product.state.words().to_owned(),
                false => format!("{}: {}", product.state.words(), product.why),
            };
            text.fact(product.name, said);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_needs_no_remedy_and_what_is_not_has_a_cause() {
        let report = examine(Built::default());
        for offer in &report.offers {
            assert!(!offer.found.is_empty(), "{offer:?}");
            assert_eq!(offer.there, offer.cause.is_none(), "{offer:?}");
            assert!(!offer.there || offer.remedy.is_none(), "{offer:?}");
        }
        let mut names: Vec<_> = report.offers.iter().map(|offer| offer.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), report.offers.len());
        let products: Vec<_> = report.products.iter().map(|it| it.name).collect();
        assert_eq!(products, ["images", "sockets", "trees", "engines", "cell"]);
        for product in &report.products {
            let is_ready = product.state == State::Ready;
            assert_eq!(is_ready, product.why.is_empty(), "{product:?}");
        }
    }

    #[test]
    fn the_text_fits_a_terminal() {
        let text = examine(Built::default()).text().render(Some(80));
        for line in text.lines() {
            let is_word = !line.trim().contains(' ');
            assert!(line.chars().count() <= 80 || is_word, "{line}");
        }
    }
}
