//! References to a file, and how it goes back to them.

use super::MmapReplayBuffer;
use super::file::Disk;
use crate::interrupt::InterruptCheck;
use crate::replay::state::{invalid_field, key, number, number_field};
use crate::{DType, Error, Field, FieldData, Result};

const HINT: &str = "keep a copy of the file beside what was saved, or go on without it";

impl MmapReplayBuffer {
    /// A reference to the file, for a checkpoint of what learns from it, after a flush: its path, its id, how many rows
    /// were pushed, and a number that tells them from others that came in their place. The rows themselves stay where they
    /// are.
    ///
    /// # Errors
    /// Those of [`MmapReplayBuffer::flush`].
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

    /// Goes back to what a reference to this buffer's file tells of, wherever that lies now: rows that were pushed after it
    /// are dropped, also from the file.
    ///
    /// # Errors
    /// [`Error::Config`], [`Error::Space`] or [`Error::Shape`] naming what is missing, another file's, ahead of it, so far
    /// behind that rows of it were overwritten, or of rows that were dropped when the file went back, be there others of
    /// their numbers since. Nothing has changed then. [`Error::Io`] if the system refuses, and [`Error::Interrupted`] if it
    /// was told to stop: some of the later rows are dropped then, the last ones.
    pub fn load_state(&mut self, state: &[Field]) -> Result<()> {
        const NAMES: [&str; 4] = ["path", "id", "pushed", "timeline"];
        if let Some(other) = state.iter().find(|field| !NAMES.contains(&field.name())) {
            return Err(invalid_field(other.name(), "no such array", "one"));
        }
        let [id, pushed, timeline] = [number(state, "id")?, number(state, "pushed")?, number(state, "timeline")?];
        if id != (self.id >> 1) as usize {
            let expected = format!("that of {}", self.path().display());
            return Err(invalid_field("id", expected, "that of another file"));
        }
        if pushed > self.pushed {
            return Err(invalid_field("pushed", format!("at most {}, as the file has", self.pushed), pushed));
        }
        if timeline as u64 != self.cold.timeline.number_at(pushed) {
            let expected = format!("that of the first {pushed} rows in {}", self.path().display());
            let got = "that of rows that were dropped when the file went back";
            return Err(Error::config(key("timeline"), expected, got, HINT));
        }
        if pushed < self.pushed { self.truncate_to(pushed) } else { Ok(()) }
    }

    /// Drops the rows from this number on.
    fn truncate_to(&mut self, pushed: usize) -> Result<()> {
        let oldest = pushed.saturating_sub(self.total_capacity);
        let overwritten = |expected: String| {
            let expected = format!("{expected}, as older rows were overwritten since");
            Err(Error::config(key("pushed"), expected, pushed.to_string(), HINT))
        };
        if !self.cold.has(oldest, self.pushed) {
            return overwritten(format!("at least {}", self.pushed - self.cold.slack));
        }
        // Rows that were dropped before may have gone further than those that came since.
        if pushed > 0 && oldest < self.cold.written && !self.cold.is_there(oldest)? {
            return overwritten("more".to_owned());
        }
        self.flush()?;
        let mut interrupt = InterruptCheck::default();
        let numbers = [(); 2].map(|()| {
            let [low, high] = Disk::id().map(u64::from);
            // Never that of a file that has not gone back.
            (high << 32 | low) >> 1 | 1
        });
        let gone = self.cold.truncate(pushed, numbers, &mut || interrupt.check());
        self.pushed = self.cold.written;
        self.hot_from = self.hot_from.min(self.pushed);
        gone
    }
}
