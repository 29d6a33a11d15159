//! Tables of objects, by number.

/// A table with reused numbers.
pub(crate) struct Slab<T>(Vec<Option<T>>);

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Slab<T> {
    pub(crate) fn insert(&mut self, value: T) -> usize {
        // A search, not a list of free places: objects are few, and opened seldom.
        let free = self.0.iter().position(Option::is_none);
        let index = free.unwrap_or_else(|| {
            self.0.push(None);
            self.0.len() - 1
        });
        self.0[index] = Some(value);
        index
    }

    pub(crate) fn get(&mut self, index: usize) -> Option<&mut T> {
        self.0.get_mut(index)?.as_mut()
    }

    pub(crate) fn remove(&mut self, index: usize) -> Option<T> {
        self.0.get_mut(index)?.take()
    }

    pub(crate) fn each(&mut self) -> impl Iterator<Item = (usize, &mut T)> {
        let places = self.0.iter_mut().enumerate();
        places.filter_map(|(index, place)| Some((index, place.as_mut()?)))
    }
}
