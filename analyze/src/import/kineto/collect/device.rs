//! Kernels, copies and memsets.

use ktape_format::definition::{KernelName, Shape};
use ktape_format::event::{copy_kind, timing};

use super::super::arguments::Arguments;
use super::super::category::Category;
use super::super::dialect::number_behind;
use super::super::json::RawEvent;
use super::super::names;
use super::super::records::{DeviceOp, Place, Work};
use super::{Collector, Complete, Id};

impl Collector {
    pub(super) fn device_op(&mut self, complete: Complete<'_, '_>) {
        let Complete { event, category, start_ns, duration_ns, arguments, .. } = complete;
        let place = self.place(event, arguments);
        // Device work has a context and a stream; ROCm's records do not name the context.
        let place = Place { context: place.context.or(Some(0)), stream: place.stream.or(Some(0)), ..place };
        let device = place.device;
        let place = self.records.places.number(place);
        if let Some(priority) = arguments.priority {
            self.records.priorities.entry(place).or_insert(priority);
        }
        let bytes = arguments.bytes.map_or(0, |bytes| bytes.max(0) as u64);
        let work = match category {
            Category::Memcpy => {
                let (kind, source_memory, target_memory) = names::copy_name(&event.name);
                let kind = if kind == copy_kind::UNKNOWN { arguments.copy_kind.unwrap_or(kind) } else { kind };
                let ends = [arguments.from_device, arguments.to_device];
                let peer_device = ends.into_iter().flatten().find(|end| *end != device);
                let name = self.string(&event.name);
                Work::Memcpy { bytes, kind, source_memory, target_memory, peer_device, name }
            }
            Category::Memset => {
                let name = self.string(&event.name);
                Work::Memset { bytes, target_memory: names::memset_name(&event.name), name }
            }
            _ => {
                let shape = self.shape(&event.name, arguments);
                Work::Kernel(self.records.shapes.number(shape))
            }
        };
        let args = self.kept_args();
        self.records.device_ops.push(DeviceOp {
            start_ns,
            duration_ns,
            correlation: arguments.correlation,
            place,
            graph: arguments.graph,
            graph_node: arguments.graph_node,
            args,
            timing: timing::MEASURED,
            work,
        });
    }

    /// A kernel's shape. A device record has static and dynamic shared memory as one sum.
    pub(super) fn shape(&mut self, kernel: &str, arguments: &Arguments<'_>) -> Shape {
        let name = self.string(kernel);
        let kernel = self.define(KernelName { name, module: 0 });
        let ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]) = (arguments.grid, arguments.block);
        let shared_bytes = arguments.shared_bytes;
        let registers = arguments.registers;
        let grid = Shape { grid_x, grid_y, grid_z, block_x, block_y, block_z, ..Shape::default() };
        Shape { kernel, shared_bytes, registers, ..grid }
    }

    /// Where on a device an event is: by its arguments, else by its row, which is device (pid) and stream (tid).
    pub(super) fn place(&mut self, event: &RawEvent<'_>, arguments: &Arguments<'_>) -> Place {
        let device = arguments.device.or_else(|| match Id::of(event.pid) {
            Id::Number(number) => Some(number),
            Id::Text(text) => number_behind("Device ", &text),
            Id::None => None,
        });
        let device = device.and_then(|device| u32::try_from(device).ok()).unwrap_or_else(|| {
            self.summary.repair("device not named, taken as 0");
            0
        });
        let stream = arguments.stream.or_else(|| match Id::of(event.tid) {
            Id::Number(number) => Some(number),
            Id::Text(text) => number_behind("stream ", &text).or_else(|| number_behind("Stream ", &text)),
            Id::None => None,
        });
        // CUPTI's "no stream" is −1, which some versions print as unsigned.
        let stream = stream.filter(|stream| *stream >= 0 && *stream != i64::from(u32::MAX));
        Place {
            device,
            context: arguments.context.map(|context| context as u64),
            stream: stream.map(|stream| stream as u64),
        }
    }
}
