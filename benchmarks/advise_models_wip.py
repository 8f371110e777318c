import os, sys, time, statistics, json
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from fastcomm._measure.launch import launch
from fastcomm._advise.replay import replay, Message, Speeds

class LSTMNet(nn.Module):
    def __init__(s,h=256):
        super().__init__(); s.e=nn.Embedding(2000,h); s.l=nn.LSTM(h,h,2,batch_first=True); s.o=nn.Linear(h,2000)
    def forward(s,x): return s.o(s.l(s.e(x))[0][:, -1])
class Emb(nn.Module):
    def __init__(s):
        super().__init__(); s.e=nn.EmbeddingBag(100000,64); s.o=nn.Sequential(nn.Linear(64,64),nn.ReLU(),nn.Linear(64,10))
    def forward(s,x): return s.o(s.e(x))
class Tr(nn.Module):
    def __init__(s,h=256):
        super().__init__(); s.e=nn.Embedding(2000,h); s.t=nn.TransformerEncoder(nn.TransformerEncoderLayer(h,4,4*h,batch_first=True,dropout=0.0),3); s.o=nn.Linear(h,2000)
    def forward(s,x): return s.o(s.t(s.e(x))[:,-1])
def make(kind):
    torch.manual_seed(0)
    if kind=='mlp': return nn.Sequential(*sum([[nn.Linear(1024,1024),nn.ReLU()] for _ in range(6)],[])), lambda b: torch.randn(b,1024), 1024
    if kind=='cnn': return nn.Sequential(nn.Conv2d(3,32,3,padding=1),nn.ReLU(),nn.Conv2d(32,64,3,stride=2,padding=1),nn.ReLU(),nn.Conv2d(64,128,3,stride=2,padding=1),nn.ReLU(),nn.AdaptiveAvgPool2d(1),nn.Flatten(),nn.Linear(128,10)), lambda b: torch.randn(b,3,32,32), 10
    if kind=='emb': return Emb(), lambda b: torch.randint(0,100000,(b,20)), 10
    if kind=='tr': return Tr(), lambda b: torch.randint(0,2000,(b,32)), 2000
    if kind=='lstm': return LSTMNet(), lambda b: torch.randint(0,2000,(b,16)), 2000
    raise SystemExit(kind)

class Loop:
    def __init__(s, model, data, classes, batch):
        s.model=model; s.data=data; s.classes=classes; s.batch=batch
        s.opt=torch.optim.SGD(model.parameters(), lr=1e-3)
        s.x=data(batch); s.y=torch.randint(0,classes,(batch,)); s.loss=nn.CrossEntropyLoss()
    def step(s, marks=None):
        t0=time.perf_counter(); s.opt.zero_grad()
        t1=time.perf_counter(); l=s.loss(s.model(s.x),s.y)
        t2=time.perf_counter(); l.backward()
        t3=time.perf_counter(); s.opt.step(); t4=time.perf_counter()
        if marks is not None: marks.append((t0,t1,t2,t3,t4))
        return t4-t0
def med(v): return statistics.median(v)

def alone(rank, kind, batch, n):
    torch.set_num_threads(rank_threads(1))
    m,d,c=make(kind); lp=Loop(m,d,c,batch)
    ts=[lp.step() for _ in range(n)]
    return med(ts[3:])
def rank_threads(size): return max(1, len(os.sched_getaffinity(0))//size)

def copies(rank, kind, batch, n):
    """N copies beside each other, each in DDP that sends nothing; then communication."""
    torch.set_num_threads(rank_threads(rank.size))
    dist.init_process_group("fastcomm")
    gl=dist.new_group(backend="gloo")
    m,d,c=make(kind)
    hooks=[]
    def hook(state, bucket):
        hooks.append((time.perf_counter(), bucket.buffer().numel()*bucket.buffer().element_size()))
        f=torch.futures.Future(); f.set_result(bucket.buffer()); return f
    ddp=DDP(m, process_group=gl); ddp.register_comm_hook(None, hook)
    lp=Loop(ddp,d,c,batch)
    for _ in range(4): lp.step()
    rows=[]; 
    for _ in range(n):
        dist.barrier(gl)
        hooks.clear(); marks=[]; lp.step(marks); t0,t1,t2,t3,t4=marks[0]
        rows.append((t1-t0, t2-t1, [h-t2 for h,_ in hooks], t3-hooks[-1][0], t4-t3, [b for _,b in hooks]))
    sizes=rows[-1][5]
    rows=[r for r in rows if r[5]==sizes]
    zero=med([r[0] for r in rows]); fwd=med([r[1] for r in rows]); ready=[med([r[2][i] for r in rows]) for i in range(len(sizes))]
    tail=med([r[3] for r in rows]); opt=med([r[4] for r in rows])
    # communication alone
    cost={}
    for b in sorted(set(sizes)):
        bufs=[torch.zeros(b//4) for _ in range(max(2,min(8,(64<<20)//b)))]
        ts=[]
        for i in range(30):
            dist.barrier(gl)
            t=time.perf_counter(); dist.all_reduce(bufs[i%len(bufs)]); ts.append(time.perf_counter()-t)
        cost[b]=med(ts[5:])
    big=max(sizes)
    # speeds beside each other
    x=lp.x
    def compute(k):
        t=time.perf_counter()
        for _ in range(k): m(x).sum().backward()
        return time.perf_counter()-t
    one=med([compute(1) for _ in range(5)])
    k=max(1,int(0.05/one)); 
    base=[];both=[];tot=[]
    M=int(k*one*2.5/cost[big])+2; M=min(M,400)
    bufs=[torch.zeros(big//4) for _ in range(max(2,min(8,(64<<20)//big)))]
    for _ in range(7):
        dist.barrier(gl); base.append(compute(k))
        dist.barrier(gl); t=time.perf_counter(); ws=[dist.all_reduce(bufs[i%len(bufs)],async_op=True) for i in range(M)]
        c2=compute(k); 
        for w in ws: w.wait()
        tot.append(time.perf_counter()-t); both.append(c2)
    tb=torch.tensor([med(base),med(both),med(tot)]); dist.all_reduce(tb,op=dist.ReduceOp.MAX,group=gl)
    b0,b1,T=tb.tolist()
    r=min(1.0,b0/b1); q=min(1.0,max(0.02,(M*cost[big]-(T-b1))/b1)) if T>b1 else 1.0
    return dict(zero=zero,fwd=fwd,ready=ready,tail=tail,opt=opt,sizes=sizes,cost=cost,r=r,q=q)

def real(rank, kind, batch, n):
    torch.set_num_threads(rank_threads(rank.size))
    dist.init_process_group("fastcomm")
    gl=dist.new_group(backend="gloo")
    m,d,c=make(kind); lp=Loop(DDP(m),d,c,batch)
    ts=[]
    for _ in range(n+4): ts.append(lp.step())
    return med(ts[4:])

if __name__=="__main__":
    N=2
    for kind in (sys.argv[1].split(",") if len(sys.argv)>1 else ['mlp','cnn','emb','tr','lstm']):
        for batch in (8,64):
            n=25
            a=launch(alone,1,kind,batch,n,timeout_s=300)[0]
            rs=launch(copies,N,kind,batch,n,timeout_s=300)
            t2s=[max(launch(real,N,kind,batch,n,timeout_s=300)) for _ in range(2)]
            preds=[]
            for c in rs:
                msgs=[Message(t,c['cost'][b]) for t,b in zip(c['ready'],c['sizes'])]
                e=replay(c['ready'][-1],msgs,Speeds(c['r'],c['q'])).end
                preds.append(c['zero']+c['fwd']+e+c['tail']+c['opt'])
            c=rs[0]; p=max(preds); t2=med(t2s)
            print(f"{kind:5} b{batch:3} one {a*1e3:7.2f} ms  2: predicted {p*1e3:7.2f} measured {t2*1e3:7.2f} ({'/'.join(f'{t*1e3:.2f}' for t in t2s)}) err {100*(p/t2-1):+5.1f}%  speedup pred {2*a/p:.2f} meas {2*a/t2:.2f} | comm {sum(c['cost'][b] for b in c['sizes'])*1e3:.2f} ms in {len(c['sizes'])} r {c['r']:.2f} q {c['q']:.2f} fwd {c['fwd']*1e3:.1f} bwd {c['ready'][-1]*1e3:.1f} tail {c['tail']*1e3:.1f} opt {c['opt']*1e3:.1f}",flush=True)
