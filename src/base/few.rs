//! A list of few things, for what there is a million of.

/// A list that is nearly always empty, and is one word then. There are as many as connections.
#[derive(Clone, Debug)]
#[allow(clippy::box_collection, reason = "an empty Vec is three words")]
pub struct Few<T>(Option<Box<Vec<T>>>);

impl<T> Default for Few<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T> Few<T> {
    /// Adds one.
    pub fn push(&mut self, item: T) {
        self.0.get_or_insert_with(Box::default).push(item);
    }

    /// All of them.
    #[must_use]
    pub fn as_slice(&self) -> &[T] {
        self.0.as_deref().map_or(&[], Vec::as_slice)
    }

    /// All of them, to be changed.
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        self.0.as_deref_mut().map_or(&mut [], Vec::as_mut_slice)
    }

    /// Takes all out.
    pub fn take(&mut self) -> Vec<T> {
        self.0.take().map_or(Vec::new(), |items| *items)
    }

    /// Takes out the last.
    pub fn pop(&mut self) -> Option<T> {
        let items = self.0.as_mut()?;
        let item = items.pop();
        if items.is_empty() {
            self.0 = None;
        }
        item
    }

    /// Takes one out; the last stands in its place then.
    pub fn swap_remove(&mut self, at: usize) -> Option<T> {
        let items = self.0.as_mut().filter(|items| at < items.len())?;
        let item = items.swap_remove(at);
        if items.is_empty() {
            self.0 = None;
        }
        Some(item)
    }
}
