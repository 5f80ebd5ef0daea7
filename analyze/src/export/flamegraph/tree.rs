//! Stacks merged into a tree by their labels.

use std::cmp::Reverse;

use rustc_hash::FxHashMap;

use super::label::{Class, Label, Labels};
use super::{By, Shape};
use crate::timeline::Timeline;
use crate::timeline::names::{MOST_FRAMES, frames_cut};
use crate::timeline::weights::{Caller, LeafKind, Place, Weights};

/// Stacks merged into a tree. Node 0 is the root, which has no label.
#[derive(Debug)]
pub struct Tree {
    labels: Vec<Label>,
    nodes: Vec<Node>,
}

#[derive(Debug, Default)]
struct Node {
    label: u32,
    /// Comes before its children.
    parent: u32,
    /// The weight of stacks that end here.
    own: u64,
    /// The weight of stacks that end here or above.
    total: u64,
    /// The widest first.
    children: Vec<u32>,
}

impl Tree {
    /// Merges `weights`, which came from `timeline`, into the wanted shape. Takes time and memory by the number of
    /// different stacks, not of events.
    pub fn new(timeline: &Timeline, weights: &Weights, shape: &Shape) -> Tree {
        let mut builder = Builder::new(timeline, weights);
        let mut path = Vec::new();
        for (place, weight) in &weights.stacks {
            builder.path(place, shape, &mut path);
            if shape.filter.is_none() || builder.matches(shape, &path) {
                builder.insert(&path, *weight);
            }
        }
        builder.finish()
    }

    /// The sum of all weights in the tree.
    pub fn total(&self) -> u64 {
        self.nodes[0].total
    }

    /// How many frames there are.
    pub fn frames(&self) -> usize {
        self.nodes.len() - 1
    }

    /// How many frames weigh less than `least`.
    pub fn frames_below(&self, least: u64) -> usize {
        self.nodes.iter().filter(|node| node.total < least).count()
    }

    /// What is written on the frames; the numbers of [`Tree::walk`] and [`Tree::roots`] are indices into it.
    pub fn labels(&self) -> &[Label] {
        &self.labels
    }

    /// The labels of the outermost frames, the widest first.
    pub fn roots(&self) -> impl Iterator<Item = u32> + '_ {
        self.nodes[0].children.iter().map(|&child| self.nodes[child as usize].label)
    }

    /// Calls `stack` with the labels, outermost first, and weight of each stack, depth first and the widest first; what
    /// ends at a frame comes after what goes on from there. The weights' sum is [`Tree::total`].
    ///
    /// Frames that weigh less than `least` are left out, and their weight counts for the frame that they stand on.
    pub fn walk<Error>(
        &self,
        least: u64,
        mut stack: impl FnMut(&[u32], u64) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut path = Vec::new();
        let mut open = vec![(0_u32, 0_usize)];
        while let Some((node, visited)) = open.last_mut() {
            let row = &self.nodes[*node as usize];
            let wide = |child: u32| self.nodes[child as usize].total >= least;
            if let Some(&child) = row.children.get(*visited).filter(|&&child| wide(child)) {
                *visited += 1;
                open.push((child, 0));
                path.push(self.nodes[child as usize].label);
                continue;
            }
            let thin = &row.children[*visited..];
            let own = row.own + thin.iter().map(|&child| self.nodes[child as usize].total).sum::<u64>();
            if own > 0 {
                stack(&path, own)?;
            }
            open.pop();
            path.pop();
        }
        Ok(())
    }
}

struct Builder<'a> {
    timeline: &'a Timeline,
    labels: Labels,
    leaves: Vec<u32>,
    /// Which leaves are no frames of their own.
    running: Vec<bool>,
    nodes: Vec<Node>,
    children: FxHashMap<(u32, u32), u32>,
    matches: Vec<Option<bool>>,
}

impl<'a> Builder<'a> {
    fn new(timeline: &'a Timeline, weights: &Weights) -> Builder<'a> {
        let mut labels = Labels::default();
        let leaves = labels.leaves(&timeline.definitions, &weights.leaves);
        let running = weights.leaves.iter().map(|leaf| leaf.kind == LeafKind::Running).collect();
        let (nodes, children) = (vec![Node::default()], FxHashMap::default());
        Builder { timeline, labels, leaves, running, nodes, children, matches: Vec::new() }
    }

    /// Writes the labels of a stack into `path`, as they shall stand from the root on.
    fn path(&mut self, place: &Place, shape: &Shape, path: &mut Vec<u32>) {
        path.clear();
        let leaf = self.leaves[place.leaf as usize];
        let is_running = self.running[place.leaf as usize];
        if shape.by != By::Kernel && !is_running {
            path.push(leaf);
        }
        match place.caller {
            Caller::Stack(stack) => self.callers(stack, path),
            Caller::NoStack if is_running => path.push(self.labels.text(Class::Note, "[no Python stack]")),
            Caller::NoStack => path.push(self.labels.text(Class::Note, "[launched without a recorded stack]")),
            Caller::NoCall => path.push(self.labels.text(Class::Note, "[launch not recorded]")),
        }
        if !shape.reverse {
            path.reverse();
        }
        let definitions = &self.timeline.definitions;
        match shape.by {
            By::Stack => {}
            By::Kernel => path.insert(0, leaf),
            By::Stream => path.insert(0, self.labels.stream(definitions, place)),
            By::Rank => path.insert(0, self.labels.process(definitions, place)),
        }
    }

    fn callers(&mut self, stack: u32, path: &mut Vec<u32>) {
        let definitions = &self.timeline.definitions;
        for (_, node) in definitions.stack_nodes(stack) {
            if path.len() == MOST_FRAMES {
                path.push(self.labels.text(Class::Note, &frames_cut()));
                return;
            }
            path.push(self.labels.frame(definitions, &node));
        }
        if definitions.stack_nodes(stack).next().is_none() {
            path.push(self.labels.text(Class::Note, "[stack lost]"));
        }
    }

    fn matches(&mut self, shape: &Shape, path: &[u32]) -> bool {
        let Some(filter) = &shape.filter else { return true };
        let (labels, known) = (self.labels.as_slice(), &mut self.matches);
        known.resize(labels.len(), None);
        path.iter()
            .map(|&label| label as usize)
            .any(|label| *known[label].get_or_insert_with(|| filter.is_match(&labels[label].text)))
    }

    fn insert(&mut self, path: &[u32], weight: u64) {
        let node = path.iter().fold(0, |parent, &label| {
            let next = self.nodes.len() as u32;
            let node = *self.children.entry((parent, label)).or_insert(next);
            if node == next {
                self.nodes.push(Node { label, parent, ..Node::default() });
                self.nodes[parent as usize].children.push(node);
            }
            node
        });
        self.nodes[node as usize].own += weight;
    }

    fn finish(mut self) -> Tree {
        for node in (0..self.nodes.len()).rev() {
            self.nodes[node].total += self.nodes[node].own;
            let (parent, total) = (self.nodes[node].parent as usize, self.nodes[node].total);
            if node > 0 {
                self.nodes[parent].total += total;
            }
        }
        let labels = self.labels.into_vec();
        let totals: Vec<(u64, u32)> = self.nodes.iter().map(|node| (node.total, node.label)).collect();
        for node in &mut self.nodes {
            node.children.sort_by_key(|&child| {
                let (total, label) = totals[child as usize];
                let label = &labels[label as usize];
                (Reverse(total), &label.text, label.class as u8)
            });
        }
        Tree { labels, nodes: self.nodes }
    }
}
