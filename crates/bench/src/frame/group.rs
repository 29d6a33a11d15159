//! Groups of measurements, known by their names on the command line.

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
