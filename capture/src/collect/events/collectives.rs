//! NCCL's calls: how much of what is sent, in which communicator.
//!
//! Bytes are those that this rank's buffer of one step has by the call: elements times the size of one. What a communicator's
//! rank is, is known where its making was seen; of one that was split from another it is not.

use ktape_format::Sink;
use ktape_format::event::Api;
use serde_json::{Map, Value, json};

use super::arguments::Arguments;
use super::calls::Within;
use super::objects::Objects;
use crate::probes::collectives::{REDUCTIONS, TYPES};
use crate::probes::functions::Collective;

impl Within<'_> {
    pub(super) fn collective<S: Sink>(
        &mut self,
        a: &Arguments<'_>,
        at: Collective,
        sink: &mut S,
    ) -> Result<Api, S::Error> {
        let stream = at.communicator + 1;
        self.note_unreadable(usize::from(stream) >= a.call.registers.len() && a.words.is_empty());
        let count = a.word(at.count);
        let element = a.half(at.count + 1);
        let mut said = Map::new();
        said.insert("count".into(), count.into());
        match TYPES.get(element as usize) {
            Some(&(name, bytes)) => {
                said.insert("type".into(), name.into());
                said.insert("bytes".into(), count.saturating_mul(bytes).into());
            }
            None => {
                said.insert("type".into(), element.into());
            }
        }
        if let Some(reduction) = at.reduction {
            let name = REDUCTIONS.get(a.half(reduction) as usize).copied().unwrap_or("custom");
            said.insert("reduction".into(), name.into());
        }
        if let Some(rank) = at.rank {
            said.insert("with_rank".into(), a.half(rank).cast_signed().into());
        }
        said.insert("stream".into(), a.word(stream).into());
        say_communicator(&mut said, a.word(at.communicator), self.objects);
        let args = sink.string(&Value::Object(said).to_string())?;
        Ok(Api { args, ..self.api(a) })
    }

    /// The arguments of a call about a communicator.
    pub(super) fn communicator<S: Sink>(&mut self, communicator: u64, sink: &mut S) -> Result<u32, S::Error> {
        let mut said = Map::new();
        say_communicator(&mut said, communicator, self.objects);
        sink.string(&Value::Object(said).to_string())
    }
}

fn say_communicator(said: &mut Map<String, Value>, communicator: u64, objects: &Objects) {
    said.insert("communicator".into(), json!(communicator));
    if let Some((rank, ranks)) = objects.communicator(communicator) {
        said.insert("rank".into(), rank.into());
        said.insert("ranks".into(), ranks.into());
    }
}
