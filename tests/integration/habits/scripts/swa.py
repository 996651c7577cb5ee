"""SWA: an average of the weights from step 30 on, with ``SWALR``."""

import habit
from torch.optim.swa_utils import SWALR, AveragedModel

peer, model, optimizer = habit.prepared()
swa = AveragedModel(model)
schedule = SWALR(optimizer, swa_lr=0.01, anneal_epochs=20)
peer.keep(swa=swa, schedule=schedule)


@peer.each_step
def average():
    if peer.step > 30:
        swa.update_parameters(model)


habit.train(peer, model, optimizer, schedule=schedule)
habit.done(peer, model, counts={"n": swa.n_averaged}, shared={"swa": swa.module})
