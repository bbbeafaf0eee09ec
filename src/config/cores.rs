//! Which part of the node runs on which core.
//!
//! The cores that the process may use and the wishes of the configuration flow in, one core a part flows out. Always
//! true: every part has a core of the process's own affinity; no two parts share one while there are enough; and equal
//! calls give equal placements.

use std::fmt;

/// One core for each part. Cores are the kernel's numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cores {
    /// Of the orchestrator and of the store's threads.
    pub orchestrator: usize,
    /// Of each shard, by its number.
    pub shards: Vec<usize>,
    /// The most parts that share one core; 1 where each has its own.
    pub sharing: usize,
}

/// The core that the orchestrator was given is not one of the process's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoSuchCore {
    /// The core that was asked for.
    pub core: usize,
    /// Those that there are.
    pub cpus: Vec<usize>,
}

impl fmt::Display for NoSuchCore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { core, cpus } = self;
        write!(f, "node.orchestrator_core = {core} is not a core of this process, which may run on {cpus:?}")
    }
}

impl std::error::Error for NoSuchCore {}

impl Cores {
    /// Places the parts on `cpus`, the process's own affinity in rising order. The orchestrator gets the core it was
    /// given, else the first; the shards get the others, and share them in turn where there are too few. On a single
    /// core everything shares it.
    ///
    /// # Errors
    /// [`NoSuchCore`].
    ///
    /// # Panics
    /// If there is no core at all, which a running process contradicts.
    pub fn place(shards: Option<u16>, orchestrator: Option<u16>, cpus: &[usize]) -> Result<Self, NoSuchCore> {
        assert!(!cpus.is_empty(), "a running process has a core");
        let orchestrator = orchestrator.map_or(cpus[0], usize::from);
        if !cpus.contains(&orchestrator) {
            return Err(NoSuchCore { core: orchestrator, cpus: cpus.to_vec() });
        }
        let mut free: Vec<usize> = cpus.iter().copied().filter(|&cpu| cpu != orchestrator).collect();
        if free.is_empty() {
            free.push(orchestrator);
        }
        let shards = shards.map_or(free.len(), usize::from).max(1);
        let shards: Vec<usize> = free.iter().copied().cycle().take(shards).collect();
        let sharing =
            |core: &usize| shards.iter().filter(|&other| other == core).count() + usize::from(*core == orchestrator);
        let sharing = cpus.iter().map(sharing).max().unwrap_or(1);
        Ok(Self { orchestrator, shards, sharing })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(shards: Option<u16>, orchestrator: Option<u16>, cpus: &[usize]) -> (usize, Vec<usize>, usize) {
        let cores = Cores::place(shards, orchestrator, cpus).unwrap();
        (cores.orchestrator, cores.shards, cores.sharing)
    }

    #[test]
    fn every_part_has_a_core_of_its_own_while_there_are_enough() {
        assert_eq!(place(None, None, &[0, 1, 2, 3]), (0, vec![1, 2, 3], 1));
        assert_eq!(place(None, None, &[4, 5]), (4, vec![5], 1));
        assert_eq!(place(None, Some(5), &[4, 5, 6]), (5, vec![4, 6], 1));
        assert_eq!(place(Some(2), None, &[0, 1, 2, 3]), (0, vec![1, 2], 1));
    }

    #[test]
    fn few_cores_are_shared() {
        assert_eq!(place(None, None, &[3]), (3, vec![3], 2));
        assert_eq!(place(Some(3), None, &[0, 1]), (0, vec![1, 1, 1], 3));
        assert_eq!(place(Some(3), None, &[0, 1, 2]), (0, vec![1, 2, 1], 2));
        let error = Cores::place(None, Some(9), &[0, 1]).unwrap_err();
        assert!(error.to_string().contains("orchestrator_core = 9") && error.to_string().contains("[0, 1]"));
    }
}
