//! Groups of measurements, known by their names on the command line.

use super::{BenchError, Frame, Reported};
use std::ops::DerefMut;
use std::str::FromStr;

/// A service's bench.
pub trait Service: Sized + 'static {
    /// Measures one group.
    type Run: Copy + 'static;
    /// All groups, in the order in which they run.
    const GROUPS: &'static [Group<Self>];
}

/// A set of measurements that can be asked for alone.
pub struct Group<S: Service> {
    /// Its name on the command line.
    pub(crate) name: &'static str,
    /// Measures it.
    pub(crate) run: S::Run,
}

impl<S: Service> Group<S> {
    pub(crate) const fn new(name: &'static str, run: S::Run) -> Self {
        Self { name, run }
    }

    /// All groups' names, in the order in which they run.
    pub fn names() -> impl Iterator<Item = &'static str> {
        S::GROUPS.iter().map(|group| group.name)
    }

    /// The groups that are asked for; all where `only` is empty.
    pub(crate) fn chosen(only: &[Self]) -> impl Iterator<Item = &'static Self> {
        let chosen =
            |group: &&Self| only.is_empty() || only.iter().any(|asked| asked.name == group.name);
        S::GROUPS.iter().filter(chosen)
    }

    /// Runs the groups that are asked for, each by `run`.
    ///
    /// # Errors
    /// As [`Frame::end_group`].
    pub(crate) fn run_chosen<'f, B, R>(
        only: &[Self],
        bench: &mut B,
        run: impl Fn(&Self, &mut B) -> Result<(), BenchError>,
    ) -> Result<(), BenchError>
    where
        B: DerefMut<Target = Frame<'f, R>>,
        R: Reported + 'f,
    {
        for group in Self::chosen(only) {
            bench.begin_group(group.name);
            let result = run(group, bench);
            bench.end_group(result)?;
        }
        Ok(())
    }
}

impl<S: Service> Clone for Group<S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S: Service> Copy for Group<S> {}

impl<S: Service> std::fmt::Debug for Group<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

impl<S: Service> FromStr for Group<S> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = S::GROUPS.iter().find(|group| group.name == text);
        found.copied().ok_or_else(|| {
            let names: Vec<_> = Self::names().collect();
            format!("no group `{text}`; choose from {}", names.join(", "))
        })
    }
}
