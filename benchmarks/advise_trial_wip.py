import sys, statistics, time, copy
sys.path.insert(0,'/tmp/adv')
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
import fastcomm
from exp2 import work_of
from fastcomm._advise import rank as R
from fastcomm._advise.step import Bucket, Step, median
from fastcomm._advise.work import Work
def both(kind,batch,n):
    w=work_of(kind,batch)
    issued=[]
    def keep(b):
        issued.append((b.buffer().nbytes,time.perf_counter())); f=torch.futures.Future(); f.set_result(b.buffer()); return f
    m0=copy.deepcopy(w.model); q=Work(m0,w.sample,w.loss_fn); quiet=DDP(m0); quiet.register_comm_hook(None, lambda _, bucket: keep(bucket)); oq=q.optimizer_or_sgd()
    m1=copy.deepcopy(w.model); l=Work(m1,w.sample,w.loss_fn); loud=DDP(m1); ol=l.optimizer_or_sgd()
    steps=[];real=[]
    for i in range(n+4):
        for side in ((0,1) if i%2 else (1,0)):
            dist.barrier()
            if side==0:
                issued.clear(); t0=time.perf_counter(); oq.zero_grad(); t1=time.perf_counter(); x=q.loss(quiet); t2=time.perf_counter(); x.backward(); t3=time.perf_counter(); oq.step(); t4=time.perf_counter()
                steps.append(Step(t1-t0,t2-t1,tuple(Bucket(s,a-t2) for s,a in issued),t3-issued[-1][1],t4-t3))
            else:
                t0=time.perf_counter(); ol.zero_grad(); l.loss(loud).backward(); ol.step(); real.append(time.perf_counter()-t0)
    st=median(steps[4:]); sizes=sorted({b.bytes for b in st.buckets}); sec={s:R.all_reduce_alone(s) for s in sizes}
    sp=R.beside_each_other(lambda: w.loss(w.model).backward(), sizes[-1], sec)
    h=len(real[4:])//2
    return st.with_communication(sec.__getitem__,sp), statistics.median(real[4:]), statistics.median(real[4:4+h]), statistics.median(real[4+h:]), st.alone, sp
if __name__=="__main__":
    for kind in ['mlp','cnn','emb','tr','lstm']:
        for batch in (8,64):
            rs=fastcomm.launch(both,(kind,batch,30),ranks=2)
            p=max(r[0] for r in rs); t=max(r[1] for r in rs)
            print(f"{kind:5} b{batch:3} predicted {p*1e3:7.2f} measured {t*1e3:7.2f} halves {rs[0][2]*1e3:.2f}/{rs[0][3]*1e3:.2f} err {100*(p/t-1):+5.1f}%  without comm {max(r[4] for r in rs)*1e3:.2f} r {rs[0][5].computation:.2f} q {rs[0][5].communication:.2f}",flush=True)
