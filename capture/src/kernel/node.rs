//! The maps that only a recording of the whole node has: its scope, and what that left out.

use aya::Ebpf;
use aya::maps::{Array, HashMap, MapData, PerCpuArray};
use ktape_ebpf::python::Interpreter;
use ktape_ebpf::scope::Scope;
use ktape_ebpf::wire::{LeftOut, OutOfScope, Walked};

use super::programs::{KernelError, Wire, take};

/// See the module.
pub struct Node {
    scopes: Array<MapData, Wire<Scope>>,
    number: Array<MapData, u64>,
    out_of_scope: PerCpuArray<MapData, Wire<OutOfScope>>,
    left_out: HashMap<MapData, Wire<LeftOut>, u8>,
    inherited: HashMap<MapData, u32, Wire<Walked>>,
}

impl Node {
    pub(super) fn take(ebpf: &mut Ebpf) -> Result<Node, KernelError> {
        let scopes = Array::try_from(take(ebpf, "SCOPES")?)?;
        let number = Array::try_from(take(ebpf, "SCOPE_NUMBER")?)?;
        let out_of_scope = PerCpuArray::try_from(take(ebpf, "OUT_OF_SCOPE")?)?;
        let left_out = HashMap::try_from(take(ebpf, "LEFT_OUT")?)?;
        let inherited = HashMap::try_from(take(ebpf, "INHERITED")?)?;
        let mut node = Node { scopes, number, out_of_scope, left_out, inherited };
        // Until it is said, nobody is: no process has this number.
        node.set_scope(&Scope { pids: 1, ..Scope::ALL })?;
        Ok(node)
    }

    /// Says which processes become targets from now on. Those that are stay so.
    pub fn set_scope(&mut self, scope: &Scope) -> Result<(), KernelError> {
        let next = self.number.get(&0, 0)?.wrapping_add(1);
        self.scopes.set(next as u32 & 1, Wire(*scope), 0)?;
        Ok(self.number.set(0, next, 0)?)
    }

    /// Says which Python a process runs that has not called yet.
    pub fn set_interpreter(&mut self, pid: u32, interpreter: Interpreter) -> Result<(), KernelError> {
        Ok(self.inherited.insert(pid, Wire(Walked { generation: 0, interpreter }), 0)?)
    }

    /// Has launches with this stack left out from now on.
    pub fn leave_out(&mut self, stack: LeftOut) -> Result<(), KernelError> {
        Ok(self.left_out.insert(Wire(stack), 1, 0)?)
    }

    /// What was left out of this function's calls, of all processors together.
    pub fn out_of_scope(&self, function: usize) -> Result<OutOfScope, KernelError> {
        let mut sum = OutOfScope::default();
        for Wire(counted) in self.out_of_scope.get(&(function as u32), 0)?.iter() {
            sum.of_processes += counted.of_processes;
            sum.of_calls += counted.of_calls;
        }
        Ok(sum)
    }
}
