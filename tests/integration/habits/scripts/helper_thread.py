"""A thread of the script reads the weights while the run trains."""

import threading

import habit

peer, model, optimizer = habit.prepared()
over, sums = threading.Event(), []


def watch():
    while not over.wait(0.002):
        sums.append(sum(float(p.detach().sum()) for p in model.parameters()))


threading.Thread(target=watch).start()
habit.train(peer, model, optimizer)
over.set()
habit.done(peer, model)
