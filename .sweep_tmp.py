import torch, time, sys, itertools
from counterpoint.tasks.cartpole import CartPole
from counterpoint.evaluation.rollout import returns
from counterpoint.policies.pets import *
dev=torch.device('cuda' if torch.cuda.is_available() else 'cpu')
t0=CartPole(noise_size=0.0); tn=CartPole()
for H,(C,E,I) in itertools.product((25,30,40,50,60),((100,10,3),(200,20,3),(200,20,5),(400,40,5))):
    out=[]
    for task,P in ((t0,1),(tn,5)):
        a=Planner(H,C,E,I).actor(TrueWorlds(task,P),task)
        t=time.time(); r=returns(a,task,1,20,0,500,dev).cpu()[0]; out.append((round(r.mean().item()),round(r.min().item()),round(time.time()-t,1)))
    print(H,C,E,I,'noiseless mean,min,s',out[0],'noisy P5',out[1],flush=True)
