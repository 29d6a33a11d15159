//! Tables of objects: by the handle in the program's structure, and by that structure's address.
//!
//! Must stay true: an entry is found only by both, so that a pointer to an object that was freed
//! names nothing, as long as its memory can be read.

use sidecore_bare::width::ToUsize;

/// A table with reused handles.
pub(crate) struct Table<T> {
    places: Vec<Option<(usize, T)>>,
    free: Vec<u32>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self {
            places: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<T> Table<T> {
    /// A handle for an object, whose address [`Self::name`] adds.
    pub(crate) fn insert(&mut self, value: T) -> u32 {
        // The handle freed last: its place is most likely in the cache.
        if let Some(handle) = self.free.pop() {
            self.places[handle.to_usize()] = Some((0, value));
            return handle;
        }
        self.places.push(Some((0, value)));
        u32::try_from(self.places.len() - 1).unwrap_or(u32::MAX)
    }

    /// Records the address of an object's structure.
    pub(crate) fn name(&mut self, handle: u32, address: usize) {
        if let Some(Some(place)) = self.places.get_mut(handle.to_usize()) {
            place.0 = address;
        }
    }

    /// The object of a structure.
    pub(crate) fn find(&mut self, handle: u32, address: usize) -> Option<&mut T> {
        let place = self.places.get_mut(handle.to_usize())?.as_mut()?;
        (place.0 == address).then_some(&mut place.1)
    }

    /// The object with a handle that this library has kept.
    pub(crate) fn get(&mut self, handle: u32) -> Option<&mut T> {
        let place = self.places.get_mut(handle.to_usize())?.as_mut();
        place.map(|(_, value)| value)
    }

    /// The address of an object's structure.
    pub(crate) fn address(&self, handle: u32) -> usize {
        let place = self.places.get(handle.to_usize());
        place.and_then(Option::as_ref).map_or(0, |place| place.0)
    }

    pub(crate) fn remove(&mut self, handle: u32) -> Option<T> {
        let place = self.places.get_mut(handle.to_usize())?.take()?;
        self.free.push(handle);
        Some(place.1)
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    pub(crate) fn each(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        let places = (0..).zip(self.places.iter_mut());
        places.filter_map(|(handle, place)| Some((handle, &mut place.as_mut()?.1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_freed_object_is_not_found_by_its_old_address() {
        let mut table = Table::default();
        let first = table.insert('a');
        table.name(first, 0x1000);
        assert_eq!(table.find(first, 0x1000), Some(&mut 'a'));
        assert_eq!(table.find(first, 0x2000), None);
        assert_eq!(table.remove(first), Some('a'));
        assert_eq!(table.remove(first), None);
        let second = table.insert('b');
        table.name(second, 0x2000);
        // The place is used again, and the old structure still names nothing.
        assert_eq!((first, table.find(first, 0x1000)), (second, None));
        assert_eq!((table.len(), table.address(second)), (1, 0x2000));
        assert_eq!(table.each().count(), 1);
    }
}
