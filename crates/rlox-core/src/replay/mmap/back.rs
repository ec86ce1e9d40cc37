//! References to states of a file, and rollbacks to such states.

use super::MmapReplayBuffer;
use super::file::Disk;
use crate::interrupt::InterruptCheck;
use crate::replay::state::{invalid_field, key, number, number_field};
use crate::{
    Error, Result,
    field::{DType, Field, FieldData},
};

const HINT: &str = "restore the copy of the file that belongs to this state, or continue without it";

impl MmapReplayBuffer {
    /// Flushes the buffer and returns a reference to its file, for a checkpoint.
    ///
    /// The fields are the path, the id of the file, the number of pushed rows, and the number of
    /// the timeline. A rollback starts a new timeline, so that its number distinguishes rows from
    /// rows that replaced them after a rollback. The reference contains no rows, which remain in
    /// the file.
    ///
    /// # Errors
    /// The errors of [`MmapReplayBuffer::flush`].
    pub fn state(&mut self) -> Result<Vec<Field>> {
        self.flush()?;
        let path = self.path().as_os_str().as_encoded_bytes();
        let mut field = Field::new("path", path.len(), &[], DType::U8)?;
        field.write_at(0, FieldData::U8(path));
        let timeline = self.cold.timeline.number_at(self.pushed) as usize;
        Ok(vec![
            field,
            number_field("id", (self.id >> 1) as usize)?,
            number_field("pushed", self.pushed)?,
            number_field("timeline", timeline)?,
        ])
    }

    /// Rolls the buffer and its file back to a reference: drops the rows that were pushed later.
    ///
    /// The file may have been moved since the reference was created.
    ///
    /// # Errors
    /// - [`Error::Config`], [`Error::Space`] or [`Error::Shape`] if an array is missing or invalid;
    ///   the error names the array. The reference is invalid if it belongs to another file or to
    ///   more rows than the file has. It is also invalid if a rollback dropped its rows, or if
    ///   newer rows replaced some of them. Nothing has changed after these errors;
    /// - [`Error::Io`] if the system reports an error, and [`Error::Interrupted`] if the interrupt
    ///   check of the process stops the call. The last rows may have been dropped.
    pub fn load_state(&mut self, state: &[Field]) -> Result<()> {
        const NAMES: [&str; 4] = ["path", "id", "pushed", "timeline"];
        if let Some(other) = state.iter().find(|field| !NAMES.contains(&field.name())) {
            return Err(invalid_field(other.name(), "no array of that name", "an array"));
        }
        let [id, pushed, timeline] = [number(state, "id")?, number(state, "pushed")?, number(state, "timeline")?];
        if id != (self.id >> 1) as usize {
            let expected = format!("the id of {}", self.path().display());
            return Err(invalid_field("id", expected, "the id of another file"));
        }
        if pushed > self.pushed {
            let expected = format!("at most {}, the number of rows in the file", self.pushed);
            return Err(invalid_field("pushed", expected, pushed));
        }
        if timeline as u64 != self.cold.timeline.number_at(pushed) {
            let expected = format!("the timeline of the first {pushed} rows in {}", self.path().display());
            let got = "the timeline of rows that a rollback dropped";
            return Err(Error::config(key("timeline"), expected, got, HINT));
        }
        if pushed < self.pushed { self.truncate_to(pushed) } else { Ok(()) }
    }

    /// Drops the rows from index `pushed` on.
    fn truncate_to(&mut self, pushed: usize) -> Result<()> {
        let oldest = pushed.saturating_sub(self.total_capacity);
        let overwritten = |expected: String| {
            let expected = format!("{expected}, because older rows were overwritten");
            Err(Error::config(key("pushed"), expected, pushed.to_string(), HINT))
        };
        if !self.cold.has(oldest, self.pushed) {
            return overwritten(format!("at least {}", self.pushed - self.cold.slack));
        }
        // Rows that an earlier rollback dropped may have overwritten rows that the current rows did
        // not.
        if pushed > 0 && oldest < self.cold.written && !self.cold.is_there(oldest)? {
            return overwritten("a later state".to_owned());
        }
        self.flush()?;
        let mut interrupt = InterruptCheck::default();
        let numbers = [(); 2].map(|()| {
            let [low, high] = Disk::id().map(u64::from);
            // The number is odd and therefore never 0, which stands for a file without rollbacks.
            (high << 32 | low) >> 1 | 1
        });
        let gone = self.cold.truncate(pushed, numbers, &mut || interrupt.check());
        self.pushed = self.cold.written;
        self.hot_from = self.hot_from.min(self.pushed);
        gone
    }
}
