//! Theoretical occupancy: how many of a multiprocessor's warps a launch's configuration lets it hold at once.
//!
//! The rules are those of NVIDIA's occupancy calculator (`cuda_occupancy.h` of the CUDA toolkit; "Compute
//! Capabilities" in the CUDA programming guide): four limits, the smallest of which decides. Registers are handed
//! out by warp in units of 256 and per quarter of a multiprocessor; shared memory by block, with 1 KiB for the
//! system from compute capability 8.0 on. Clusters are not considered. Where a limit or a size is not known, there
//! is no answer.

use ktape_format::Definitions;
use ktape_format::definition::{Device, Shape, property, vendor};
use ktape_format::table::DefinitionKind;

const REGISTER_UNIT: u32 = 256;
/// A multiprocessor is four partitions with a register file each.
const PARTITIONS: u32 = 4;

/// What a multiprocessor of a device can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How many multiprocessors the device has.
    pub multiprocessors: u32,
    /// Threads of a multiprocessor.
    pub threads: u32,
    /// Registers of a multiprocessor.
    pub registers: u32,
    /// Shared memory of a multiprocessor.
    pub shared_bytes: u32,
    /// Threads of a warp.
    pub warp_size: u32,
    /// Compute capability, major and minor.
    pub compute_capability: (u32, u32),
}

/// What a launch's configuration makes of the limits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Occupancy {
    /// Blocks that one multiprocessor can hold.
    pub blocks: u32,
    /// Warps that one multiprocessor can hold of this launch.
    pub warps: u32,
    /// Warps that one multiprocessor can hold of any launch.
    pub max_warps: u32,
    /// How often the grid fills the device.
    pub waves: f64,
    /// Blocks that the hardware's block slots allow.
    pub limit_blocks: u32,
    /// Blocks that the warps allow.
    pub limit_warps: u32,
    /// Blocks that the registers allow.
    pub limit_registers: u32,
    /// Blocks that the shared memory allows.
    pub limit_shared: u32,
}

impl Occupancy {
    /// The share of the multiprocessor's warps, in percent.
    pub fn percent(&self) -> f64 {
        100.0 * f64::from(self.warps) / f64::from(self.max_warps)
    }
}

impl Limits {
    /// The limits of a device, from its properties; `None` if one is not known or the device is not NVIDIA's.
    pub fn of_device(definitions: &Definitions, device: u32) -> Option<Limits> {
        let vendor = definitions.get::<Device>(device)?.vendor;
        if vendor != vendor::NVIDIA && vendor != vendor::UNKNOWN {
            return None;
        }
        let text = |key| definitions.property(DefinitionKind::Device as u16, device, key);
        let number = |key| text(key)?.parse::<u32>().ok().filter(|value| *value > 0);
        let (major, minor) = text(property::COMPUTE_CAPABILITY)?.split_once('.')?;
        Some(Limits {
            multiprocessors: number(property::MULTIPROCESSORS)?,
            threads: number(property::THREADS_PER_MULTIPROCESSOR)?,
            registers: number(property::REGISTERS_PER_MULTIPROCESSOR)?,
            shared_bytes: number(property::SHARED_BYTES_PER_MULTIPROCESSOR)?,
            warp_size: number(property::WARP_SIZE).unwrap_or(32),
            compute_capability: (major.parse().ok()?, minor.parse().ok()?),
        })
    }

    /// How many blocks a multiprocessor has slots for; `None` for a capability that the table does not have.
    fn block_slots(&self) -> Option<u32> {
        Some(match self.compute_capability {
            (5 | 6, _) | (7, 0 | 2) | (8, 0) | (9, 0) | (10, _) => 32,
            (7, 5) | (8, 6 | 7) => 16,
            (8, 9) | (11 | 12, _) => 24,
            _ => return None,
        })
    }

    /// The occupancy of a launch; `None` where its block or registers, or the device's generation, are not known,
    /// and where the device could not run it.
    pub fn occupancy(&self, shape: &Shape) -> Option<Occupancy> {
        let block_threads = volume(shape.block_x, shape.block_y, shape.block_z)?;
        let grid_blocks = volume(shape.grid_x, shape.grid_y, shape.grid_z)?;
        if shape.registers == 0 {
            return None;
        }
        let max_warps = self.threads / self.warp_size;
        let warps_per_block = u32::try_from(block_threads.div_ceil(u64::from(self.warp_size))).ok()?;

        let warp_registers = shape.registers.checked_mul(self.warp_size)?.next_multiple_of(REGISTER_UNIT);
        let register_warps = self.registers / PARTITIONS / warp_registers * PARTITIONS;

        let newer = self.compute_capability.0 >= 8;
        let (reserved_bytes, unit) = if newer { (1024, 128) } else { (0, 256) };
        let block_shared = u32::try_from(shape.block_shared_bytes()).ok()?;
        let block_shared = block_shared.checked_add(reserved_bytes)?.checked_next_multiple_of(unit)?;

        let limit_blocks = self.block_slots()?;
        let limit_warps = max_warps / warps_per_block;
        let limit_registers = register_warps / warps_per_block;
        let limit_shared = self.shared_bytes.checked_div(block_shared).unwrap_or(limit_blocks);
        let blocks = limit_blocks.min(limit_warps).min(limit_registers).min(limit_shared);
        (blocks > 0).then(|| Occupancy {
            blocks,
            warps: blocks * warps_per_block,
            max_warps,
            waves: grid_blocks as f64 / (u64::from(blocks) * u64::from(self.multiprocessors)) as f64,
            limit_blocks,
            limit_warps,
            limit_registers,
            limit_shared,
        })
    }
}

/// The product of three sizes; `None` if one is not known or the product is absurd.
fn volume(x: u32, y: u32, z: u32) -> Option<u64> {
    u64::from(x).checked_mul(u64::from(y))?.checked_mul(u64::from(z)).filter(|volume| *volume > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const H100: Limits = Limits {
        multiprocessors: 132,
        threads: 2048,
        registers: 65536,
        shared_bytes: 233_472,
        warp_size: 32,
        compute_capability: (9, 0),
    };
    const V100: Limits = Limits { multiprocessors: 80, shared_bytes: 98304, compute_capability: (7, 0), ..H100 };

    fn launch(block: u32, registers: u32, static_shared_bytes: u32, dynamic_shared_bytes: u32) -> Shape {
        Shape {
            grid_x: 264,
            grid_y: 1,
            grid_z: 1,
            block_x: block,
            block_y: 1,
            block_z: 1,
            registers,
            static_shared_bytes,
            dynamic_shared_bytes,
            ..Shape::default()
        }
    }

    #[test]
    fn a_small_kernel_fills_the_multiprocessor() {
        let occupancy = H100.occupancy(&launch(256, 32, 0, 0)).unwrap();
        assert_eq!((occupancy.blocks, occupancy.warps, occupancy.max_warps), (8, 64, 64));
        assert_eq!(occupancy.percent(), 100.0);
        assert_eq!(occupancy.waves, 0.25);
    }

    #[test]
    fn registers_limit() {
        // 168 registers: 5,376 a warp, 3 warps a partition, 12 a multiprocessor: 3 blocks of 4 warps.
        let occupancy = H100.occupancy(&launch(128, 168, 0, 0)).unwrap();
        assert_eq!((occupancy.limit_registers, occupancy.blocks, occupancy.percent()), (3, 3, 18.75));
        // 33 registers are handed out as 40.
        assert_eq!(H100.occupancy(&launch(256, 33, 0, 0)).unwrap().warps, 48);
    }

    #[test]
    fn shared_memory_limits_and_newer_devices_keep_a_kilobyte_of_each_block() {
        assert_eq!(H100.occupancy(&launch(128, 32, 0, 227 * 1024)).unwrap().blocks, 1);
        assert_eq!(H100.occupancy(&launch(128, 32, 1024, 48 * 1024)).unwrap().limit_shared, 4);
        assert_eq!(V100.occupancy(&launch(128, 32, 0, 48 * 1024)).unwrap().limit_shared, 2);
        assert_eq!(V100.occupancy(&launch(128, 32, 0, 0)).unwrap().limit_shared, 32);
    }

    #[test]
    fn tiny_blocks_run_out_of_block_slots() {
        assert_eq!(H100.occupancy(&launch(32, 16, 0, 0)).unwrap().warps, 32);
        let ada = Limits { threads: 1536, shared_bytes: 102_400, compute_capability: (8, 9), ..H100 };
        assert_eq!(ada.occupancy(&launch(32, 16, 0, 0)).unwrap().percent(), 50.0);
    }

    #[test]
    fn no_answer_is_better_than_a_guess() {
        assert_eq!(H100.occupancy(&launch(256, 0, 0, 0)), None, "registers not known");
        assert_eq!(H100.occupancy(&launch(0, 32, 0, 0)), None, "block not known");
        assert_eq!(H100.occupancy(&launch(128, 32, 0, 300 * 1024)), None, "cannot run");
        let unheard_of = Limits { compute_capability: (42, 0), ..H100 };
        assert_eq!(unheard_of.occupancy(&launch(256, 32, 0, 0)), None);
        assert_eq!(Limits::of_device(&Definitions::default(), 1), None);
    }
}
