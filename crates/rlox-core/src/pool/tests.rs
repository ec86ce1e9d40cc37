use std::sync::atomic::AtomicU64;

use super::*;

fn sum_of_parts(parts: usize) -> u64 {
    let sum = AtomicU64::new(0);
    run(parts, &|part, _| {
        sum.fetch_add(part as u64 + 1, Ordering::Relaxed);
        Ok(())
    })
    .unwrap();
    sum.into_inner()
}

#[test]
fn every_part_runs_once() {
    for parts in (0..200).chain([10_000]) {
        assert_eq!(sum_of_parts(parts), (parts * (parts + 1) / 2) as u64);
    }
}

#[test]
fn concurrent_and_nested_calls_finish() {
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for parts in 0..500 {
                    assert_eq!(sum_of_parts(parts), (parts * (parts + 1) / 2) as u64);
                }
            });
        }
    });
    let nested = AtomicU64::new(0);
    run(20, &|_, _| {
        nested.fetch_add(sum_of_parts(10), Ordering::Relaxed);
        Ok(())
    })
    .unwrap();
    assert_eq!(nested.into_inner(), 20 * 55);
}

/// Creates a separate pool with two workers, independent of the number of CPUs.
fn pool() -> &'static Pool {
    let pool: &'static Pool = Box::leak(Box::new(Pool::new(std::process::id())));
    pool.spawn_workers(2);
    pool
}

/// Waits until `done` returns true. Returns false after a timeout.
fn wait(done: impl Fn() -> bool) -> bool {
    let began = Instant::now();
    while !done() {
        if began.elapsed() > Duration::from_secs(20) {
            return false;
        }
        std::thread::yield_now();
    }
    true
}

#[test]
fn workers_run_parts_also_after_sleeping() {
    let pool = pool();
    for pause in [0, 0, 20] {
        std::thread::sleep(Duration::from_millis(pause));
        let num_started = AtomicUsize::new(0);
        let work = |_: usize, _: PollFn<'_>| {
            num_started.fetch_add(1, Ordering::SeqCst);
            // All three parts run at the same time only if three threads run them.
            assert!(wait(|| num_started.load(Ordering::SeqCst) == 3));
            Ok(())
        };
        pool.run_shared(&Job::new(3, &work)).unwrap().unwrap();
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn workers_use_the_caller_s_rounding_for_its_job_only() {
    let pool = pool();
    let modes = || {
        let (num_started, modes) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        let work = |_: usize, _: PollFn<'_>| {
            num_started.fetch_add(1, Ordering::SeqCst);
            // All three parts run at the same time only if three threads run them.
            assert!(wait(|| num_started.load(Ordering::SeqCst) == 3));
            modes.lock().unwrap().push(FloatMode::current());
            Ok(())
        };
        pool.run_shared(&Job::new(3, &work)).unwrap().unwrap();
        modes.into_inner().unwrap()
    };
    let (usual, flushing) = (FloatMode::current(), fp_env::tests::FLUSHING);
    assert_eq!(flushing.scoped(modes), [flushing; 3]);
    assert_eq!(modes(), [usual; 3]);
}

#[test]
fn a_concurrent_job_is_rejected() {
    let pool = pool();
    let work = |_: usize, _: PollFn<'_>| {
        assert!(pool.run_shared(&Job::new(2, &|_, _| Ok(()))).is_none());
        Ok(())
    };
    pool.run_shared(&Job::new(4, &work)).unwrap().unwrap();
    assert!(pool.run_shared(&Job::new(2, &|_, _| Ok(()))).is_some());
}

#[test]
fn errors_and_panics_of_workers_reach_the_caller() {
    let (pool, caller) = (pool(), std::thread::current().id());
    let of_worker = |fail: &(dyn Fn() -> Result<()> + Sync)| {
        let failed = AtomicBool::new(false);
        let work = |_: usize, pause: PollFn<'_>| {
            if std::thread::current().id() == caller {
                // The part of the caller ends only when the failure of the worker stops the job.
                assert!(wait(|| failed.load(Ordering::SeqCst)));
                while pause().is_ok() {}
                return pause();
            }
            failed.store(true, Ordering::SeqCst);
            fail()
        };
        pool.run_shared(&Job::new(2, &work)).unwrap()
    };
    let error = of_worker(&|| Err(Error::Backend("the worker's".into()))).unwrap_err();
    assert_eq!(error.to_string(), "the worker's");
    let caught = catch_unwind(AssertUnwindSafe(|| of_worker(&|| panic!("the worker's panic"))));
    assert_eq!(caught.unwrap_err().downcast_ref::<&str>(), Some(&"the worker's panic"));
    pool.run_shared(&Job::new(2, &|_, _| Ok(()))).unwrap().unwrap();
}

#[test]
fn the_first_error_stops_the_job() {
    for bad in [0, 7, 99] {
        let done = AtomicUsize::new(0);
        let error = run(100_000, &|part, _| {
            done.fetch_add(1, Ordering::Relaxed);
            if part == bad { Err(Error::Backend(format!("part {part}"))) } else { Ok(()) }
        });
        assert_eq!(error.unwrap_err().to_string(), format!("part {bad}"));
        assert!(done.into_inner() < 100_000);
    }
    assert_eq!(sum_of_parts(10), 55);
}

#[test]
fn panics_reach_the_caller_and_the_pool_remains_usable() {
    for bad in [0, 1, 50] {
        let caught = catch_unwind(|| {
            run(100, &|part, _| {
                assert!(part != bad, "part {part}");
                Ok(())
            })
        });
        let message = *caught.unwrap_err().downcast::<String>().unwrap();
        assert_eq!(message, format!("part {bad}"));
        assert_eq!(sum_of_parts(100), 5050);
    }
}

#[test]
fn the_number_of_threads_is_parsed() {
    assert_eq!((parsed("2"), parsed("1024")), (Some(2), Some(1024)));
    assert!(["", "0", "-1", "1025", "two", "1.5"].into_iter().all(|text| parsed(text).is_none()));
}
