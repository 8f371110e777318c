import sys, statistics, time, json
sys.path.insert(0,'/tmp/adv')
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
import fastcomm
from exp import make
from fastcomm._advise import rank as R
from fastcomm._advise.work import Work
def work_of(kind,batch):
    m,d,c=make(kind); torch.manual_seed(1)
    return Work(m,(d(batch),torch.randint(0,c,(batch,))),torch.nn.CrossEntropyLoss())
def alone(kind,batch,n):
    w=work_of(kind,batch); o=w.optimizer_or_sgd(); ts=[]
    for _ in range(n+4):
        t=time.perf_counter(); o.zero_grad(); w.loss(w.model).backward(); o.step(); ts.append(time.perf_counter()-t)
    return statistics.median(ts[4:])
def real(kind,batch,n):
    w=work_of(kind,batch); m=DDP(w.model); o=w.optimizer_or_sgd(); ts=[]
    for _ in range(n+4):
        t=time.perf_counter(); o.zero_grad(); w.loss(m).backward(); o.step(); ts.append(time.perf_counter()-t)
    return statistics.median(ts[4:])
def measured(kind,batch,n): return R.measure(work_of(kind,batch),n)
if __name__=="__main__":
    for kind in (sys.argv[1].split(",") if len(sys.argv)>1 else ['mlp','cnn','emb','tr','lstm']):
        for batch in (8,64):
            n=25
            a=fastcomm.launch(alone,(kind,batch,n),ranks=1)[0]
            t2s=[max(fastcomm.launch(real,(kind,batch,n),ranks=2))]
            ms=fastcomm.launch(measured,(kind,batch,n),ranks=2)
            t2s+=[max(fastcomm.launch(real,(kind,batch,n),ranks=2))]
            p=max(m.step.with_communication(m.seconds.__getitem__,m.speeds) for m in ms)
            m=ms[0]; t2=statistics.mean(t2s)
            print(f"{kind:5} b{batch:3} one {a*1e3:7.2f} ms  2: predicted {p*1e3:7.2f} measured {'/'.join(f'{t*1e3:.2f}' for t in t2s)} err {100*(p/t2-1):+5.1f}%  speedup pred {2*a/p:.2f} meas {2*a/t2:.2f} | comm {sum(m.seconds[b.bytes] for b in m.step.buckets)*1e3:.2f} ms in {len(m.step.buckets)} r {m.speeds.computation:.2f} q {m.speeds.communication:.2f} fwd {m.step.forward*1e3:.1f} bwd {m.step.backward*1e3:.1f} fin {m.step.finish*1e3:.1f} opt {m.step.optimizer*1e3:.1f}",flush=True)
