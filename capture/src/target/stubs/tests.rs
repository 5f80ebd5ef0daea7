use super::*;

#[test]
fn probe() {
    for path in std::env::var("PROBE").unwrap().split(':') {
        let began = std::time::Instant::now();
        let s = find(&File::open(path).unwrap()).unwrap();
        println!("{path} {} {} {:?}", s.named.len(), s.handles.len(), began.elapsed());
        for n in s.named.iter().take(3) { println!("{n:?}"); }
        for n in s.handles.iter().take(3) { println!("{n:?}"); }
    }
}

#[test]
fn unresolved() {
    let file = File::open("/tmp/wh/torch/torch/lib/libtorch_cuda.so").unwrap();
    let data = ReadCache::new(file.try_clone().unwrap());
    let library = Library::parse(&data).unwrap();
    let names = [REGISTER, GET];
    let mut callees = Callees::default();
    for (slot, name) in library.slots(&names).unwrap() { callees.slots.insert(slot, name); }
    let code = Code::new(&file, library.code_ranges());
    code.find_trampolines(&mut callees).unwrap();
    let mut n = 0;
    let mut m = 0;
    code.find_calls(&callees, &mut |call, r| { m += 1; if call == 1 && (r.get(Argument::First).is_none() || r.get(Argument::Second).is_none()) { n += 1; println!("{r:?}"); } n < 8 }).unwrap();
    println!("{n} {m}");
}
