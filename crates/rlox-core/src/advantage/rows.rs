//! Stretches of slices whose length is known when compiled, so that loops over them become vectors.

#![expect(clippy::inline_always, reason = "what is not inlined is not compiled for the wider instruction set")]

#[inline(always)]
pub(super) fn fixed<T, const N: usize>(slice: &[T], at: usize) -> &[T; N] {
    slice[at..].first_chunk().expect("the caller counted the rows")
}

#[inline(always)]
pub(super) fn fixed_mut<T, const N: usize>(slice: &mut [T], at: usize) -> &mut [T; N] {
    slice[at..].first_chunk_mut().expect("the caller counted the rows")
}
